// The average model of a checkpoint, also as one safetensors file that other programs read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "starling/checkpoint/checkpoint.h"
#include "starling/core/log.h"

namespace starling {

// The key of the metadata that has the recipe of the run, as TOML.
inline constexpr const char* kRecipe = "starling.recipe";

// The prefix of the tensors that stand in the average model for those of the same name.
inline constexpr const char* kMovingAverage = "ema.";

// A worker's file holds its model as "model.NAME", with the module's names. Here each is NAME. Real
// numbers (F32, F64) are the average over all workers of the checkpoint, summed in double; integers
// (counters) are the maximum. The average of F16 and BF16 is F32; that of a parameter is the
// average of its fp32 masters, "master.NAME". If the files have "ema.NAME" (train.ema), it is the
// average of these. A worker with numbers that are not finite, in a tensor that is finite at
// another worker, is left out of all tensors.
class AverageModel {
 public:
  // Verifies all files, and reads them once more. Logs a warning for each worker that is left out.
  // Throws Error, also if the workers' files do not fit each other, if workers count differently
  // (scheme push-sum), or if every worker is left out.
  AverageModel(const Checkpoint& checkpoint, const Log& log);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // The values of one of them. Throws Error.
  std::vector<std::byte> read(const TensorInfo& tensor) const;
  // The files of the workers that it is the average of.
  const std::vector<SafetensorsReader>& files() const { return workers_; }
  // How many workers it is the average of.
  std::size_t workers() const { return workers_.size(); }
  // starling.step, starling.workers, and the recipe.
  Metadata metadata() const;

 private:
  void leave_out(const Log& log);

  std::vector<SafetensorsReader> workers_;  // that are averaged
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::string> sources_;  // name in the model -> name in the workers' files
  std::int64_t step_;
  std::string recipe_;
};

// Writes it to a file that is put in place whole. Throws Error, or UsageError if a tensor cannot be
// averaged.
void write_consensus(const AverageModel& model, const std::string& out);

}  // namespace starling
