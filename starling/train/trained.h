// A model that was trained, to be tested and used.
#pragma once

#include <string>
#include <variant>

#include "starling/checkpoint/consensus.h"
#include "starling/checkpoint/safetensors.h"
#include "starling/train/recipe.h"

namespace torch::nn {
class Module;
}

namespace starling {

// The average model of a checkpoint, or a model in a safetensors file.
class TrainedModel {
 public:
  // `path`: a checkpoint, a folder of several, which means the latest, or a safetensors file.
  // Verifies all files of a checkpoint. Warns as AverageModel, and throws UsageError where that
  // throws Error.
  TrainedModel(const std::string& path, const Log& log);

  // The recipe of the run, with overrides. A checkpoint holds it, and so does a file of `starling
  // checkpoint consensus`. Any other file needs `recipe_file`, which counts in any case unless it
  // is empty. Throws UsageError.
  Recipe recipe(const std::string& recipe_file, const Overrides& overrides) const;
  // Throws UsageError if a parameter or buffer of the model is missing, has another shape or kind
  // of number, or if a tensor is left over. Reads no values.
  void check(const torch::nn::Module& model) const;
  // The same, then copies the values, to the model's own dtypes.
  void load_into(torch::nn::Module& model) const;

 private:
  std::string path_;
  std::variant<SafetensorsReader, AverageModel> source_;
};

}  // namespace starling
