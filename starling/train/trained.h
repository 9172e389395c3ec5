// The result of a run, from its checkpoint.
#pragma once

#include <memory>
#include <string>

#include "starling/train/recipe.h"

namespace torch::nn {
class Module;
}

namespace starling {

struct Trained {
  Recipe recipe;
  std::shared_ptr<torch::nn::Module> model;  // the average of all workers, in fp32
};

// `checkpoint`: a folder, or a root, which means its latest one. Verifies all files. Throws Error.
Trained read_trained(const std::string& checkpoint);

}  // namespace starling
