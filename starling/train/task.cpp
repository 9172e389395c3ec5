#include "starling/train/task.h"

#include <fmt/format.h>
#include <torch/nn/module.h>

#include "starling/core/config.h"
#include "starling/core/error.h"
#include "starling/train/recipe.h"

namespace starling {

std::string ScoreInfo::text(double value) const {
  return fmt::format("{:.2f}{}", shown(value), percent ? " %" : "");
}

void log_warnings(Task& task, const Log& log) {
  for (const std::string& line : task.warnings()) log(Level::warning, line);
}

const std::string& needed_dir(const Recipe& recipe, std::string_view files) {
  if (recipe.data.dir.empty()) throw UsageError(fmt::format("data.dir is not set: the folder of {}", files));
  return recipe.data.dir;
}

void recompute_key(Config& config, bool* recompute) {
  config.key("recompute", recompute,
             "keep no activations within layers and residual blocks, and compute them again in backward(): "
             "less memory, a third more work, the same numbers");
}

const TaskInfo& task_of(const Recipe& recipe) {
  for (const TaskInfo* task : known_tasks()) {
    if (task->name == recipe.data.name) return *task;
  }
  throw UsageError(fmt::format("data.name = {}: there is no such task", recipe.data.name));
}

Batch beside(const torch::nn::Module& model, const Batch& batch) {
  const at::Device device = model.parameters().front().device();
  Batch here;
  for (const at::Tensor& tensor : batch) here.push_back(tensor.to(device, /*non_blocking=*/true));
  return here;
}

}  // namespace starling
