// One worker's way from batches to gradients, between two steps of its optimizer.
#pragma once

#include <cstdint>
#include <memory>

#include "starling/optim/optimizer.h"
#include "starling/train/recipe.h"
#include "starling/train/task.h"

namespace starling {

// The device that run.device names, for this worker of its machine. Throws UsageError if torch sees
// none.
at::Device device_of(const Recipe& recipe, int local_rank);

class Learner {
 public:
  Learner(const Recipe& recipe, const MakeTask& make, const Drawer& who, at::Device device = at::kCPU);

  Task& task() { return *task_; }
  torch::nn::Module& model() { return task_->model(); }
  double steps_per_epoch() const;
  std::int64_t steps() const;  // of the whole run
  // The step with which this number of workers began; 0 if it was always this one.
  std::int64_t first_step() const;

  // Prepares a step: clears the gradients and sets the learning rate, which it returns. `done`:
  // steps of the run.
  double begin_step(std::int64_t done, Optimizer& optimizer) const;
  // Leaves the gradient of step 0, 1, .. in .grad. Returns the loss, the mean over the passes of
  // the step. Throws Error if the loss is not finite.
  double gradient(std::int64_t step, Optimizer& optimizer);

 private:
  std::int64_t whole_steps() const;  // of a run that always had this number of workers
  const Recipe recipe_;
  const int rank_;
  const at::Device device_;
  const std::unique_ptr<Task> task_;
};

}  // namespace starling
