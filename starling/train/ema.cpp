#include "starling/train/ema.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include <ATen/ops/dist.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "starling/checkpoint/consensus.h"
#include "starling/optim/average.h"
#include "starling/optim/finite.h"

namespace starling {

Ema::Ema(const torch::nn::Module& model, double decay, double jump_guard, Log log)
    : decay_(decay), jump_guard_(jump_guard), log_(std::move(log)) {
  const c10::AutoGradMode no_gradient(false);
  std::set<const void*> seen;
  const auto add = [&](const auto& tensors, bool are_parameters) {
    for (const auto& item : tensors) {
      const at::Tensor& of = item.value();
      if (of.is_floating_point() && seen.insert(of.unsafeGetTensorImpl()).second)
        values_.push_back({item.key(), of, of.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true),
                           are_parameters});
    }
  };
  add(model.named_parameters(), true);
  add(model.named_buffers(), false);
}

bool Ema::update() {
  const c10::AutoGradMode no_gradient(false);
  const double far = distance();
  if (!takes(far)) {
    std::string why = "not finite";
    if (std::isfinite(far)) why = fmt::format("{:.3g} times as far from it as usual", far / usual_.value());
    if (!std::exchange(warned_, true))
      log_(Level::warning, fmt::format("the moving average leaves out a step whose parameters are {} (later "
                                       "ones without a message)",
                                       why));
    return false;
  }
  for (Value& value : values_) {
    const at::Tensor x = value.of.to(at::kFloat);
    if (value.is_parameter || is_finite(x)) value.average.lerp_(x, 1 - decay_);
  }
  return true;
}

double Ema::distance() const {
  std::vector<at::Tensor> distances;  // on a GPU all are under way before the first is waited for
  for (const Value& value : values_) {
    if (value.is_parameter) distances.push_back(at::dist(value.of.to(at::kFloat), value.average));
  }
  double squares = 0;
  for (const at::Tensor& each : distances) squares += std::pow(each.item<double>(), 2);
  return std::sqrt(squares);
}

bool Ema::takes(double distance) {
  if (!std::isfinite(distance)) return false;
  if (jump_guard_ == 0) return true;
  if (usual_.is_jump(distance, jump_guard_)) {
    if (!usual_.refuse(distance)) return false;
    usual_.take_refused();
    return true;
  }
  usual_.forget_refused();
  usual_.learn(distance);
  return true;
}

void Ema::show_average(Optimizer& optimizer) const {
  const c10::AutoGradMode no_gradient(false);
  std::vector<float> flat;
  for (const Value& value : values_) {
    const at::Tensor dense = value.average.cpu().contiguous();
    flat.insert(flat.end(), dense.const_data_ptr<float>(), dense.const_data_ptr<float>() + dense.numel());
  }
  const std::vector<float> mine = flat;
  const FiniteAverage average =
      average_finite(flat, [&](std::span<float> all) { return optimizer.average(all) > 0; });
  if (!average.counts)
    optimizer.world().log(Level::warning,
                          "the moving average of this worker is not finite: it does not count");
  if (average.alone || average.share == 0) flat = mine;
  const float* next = flat.data();
  for (const Value& value : values_) {
    const at::Tensor dense = at::empty(value.of.sizes(), at::kFloat);
    std::copy_n(next, dense.numel(), dense.mutable_data_ptr<float>());
    value.of.copy_(dense);
    next += dense.numel();
  }
}

std::vector<std::pair<std::string, at::Tensor>> Ema::tensors() const {
  std::vector<std::pair<std::string, at::Tensor>> all;
  for (const Value& value : values_) all.emplace_back(kMovingAverage + value.name, value.average);
  return all;
}

}  // namespace starling
