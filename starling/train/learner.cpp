#include "starling/train/learner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/models/autocast.h"
#include "starling/optim/cuda/cuda.h"

namespace starling {

at::Device device_of(const Recipe& recipe, int local_rank) {
  if (recipe.run.device == "cpu") return at::kCPU;
  if (const std::string why = find_cuda(); !why.empty()) throw UsageError("run.device = cuda: " + why);
  const int count = torch::cuda::device_count();
  return {at::kCUDA, static_cast<at::DeviceIndex>(local_rank % count)};
}

namespace {

void poison_gradients(Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      if (at::Tensor& gradient = parameter.mutable_grad(); gradient.defined())
        gradient.fill_(std::numeric_limits<double>::quiet_NaN());
    }
  }
}

}  // namespace

Learner::Learner(const Recipe& recipe, const MakeTask& make, const Drawer& who, at::Device device)
    : recipe_(recipe), rank_(who.rank), device_(device), task_(make(who)) {
  model().to(device);
}

double Learner::steps_per_epoch() const {
  return static_cast<double>(task_->batches_per_epoch()) / static_cast<double>(recipe_.train.accumulate);
}

std::int64_t Learner::whole_steps() const {
  if (recipe_.run.steps > 0) return recipe_.run.steps;
  return std::max<std::int64_t>(1, std::llround(recipe_.run.epochs * steps_per_epoch()));
}

std::int64_t Learner::first_step() const { return task_->deal().first_number() / recipe_.train.accumulate; }

std::int64_t Learner::steps() const {
  if (recipe_.run.steps > 0 || task_->deal().who().before.empty()) return whole_steps();
  const double passes = task_->deal().batches_to(recipe_.run.epochs);
  return first_step() + std::llround(passes / static_cast<double>(recipe_.train.accumulate));
}

double Learner::begin_step(std::int64_t done, Optimizer& optimizer) const {
  // With another number of workers than before, the schedule goes on at the same part of the run.
  const std::int64_t left = steps() - done, whole = whole_steps();
  const double lr = learning_rate(recipe_, std::max<std::int64_t>(0, whole - left), whole);
  for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
  optimizer.zero_grad();
  return lr;
}

double Learner::gradient(std::int64_t step, Optimizer& optimizer) {
  Timeline* const timeline = optimizer.world().timeline.get();
  const std::int64_t passes = recipe_.train.accumulate;
  double step_loss = 0;
  for (std::int64_t pass = step * passes; pass < (step + 1) * passes; ++pass) {
    const Batch batch = [&] {
      const Timeline::Scope span(timeline, {.name = "data"});
      failpoint("data");
      return task_->batch(pass);
    }();
    log_warnings(*task_, optimizer.world().log);
    at::Tensor loss;
    {
      const Timeline::Scope span(timeline, {.name = "forward"});
      failpoint("forward");
      std::optional<Autocast> autocast;
      if (recipe_.train.autocast == "bf16") autocast.emplace(device_.type(), at::kBFloat16);
      loss = task_->loss(batch) / static_cast<double>(passes);
    }
    {
      const Timeline::Scope span(timeline, {.name = "backward"});
      std::optional<NoSync> accumulating;
      if (pass + 1 < (step + 1) * passes) accumulating.emplace(optimizer);
      (loss * optimizer.loss_scale()).backward();
      if (failpoint("backward")) poison_gradients(optimizer);
    }
    step_loss += loss.item<double>();
  }
  if (!std::isfinite(step_loss)) {
    throw Error(fmt::format("rank {}: step {}: the loss is {}; a lower optimizer.lr or train.clip may help",
                            rank_, step + 1, step_loss));
  }
  return step_loss;
}

}  // namespace starling
