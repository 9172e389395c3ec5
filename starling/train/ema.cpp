#include "starling/train/ema.h"

#include <algorithm>
#include <set>
#include <span>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include "starling/checkpoint/consensus.h"
#include "starling/optim/average.h"

namespace starling {

Ema::Ema(const torch::nn::Module& model, double decay) : decay_(decay) {
  const c10::AutoGradMode no_gradient(false);
  std::set<const void*> seen;
  for (const auto& all : {model.named_parameters(), model.named_buffers()}) {
    for (const auto& item : all) {
      const at::Tensor& of = item.value();
      if (of.is_floating_point() && seen.insert(of.unsafeGetTensorImpl()).second)
        values_.push_back(
            {item.key(), of, of.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)});
    }
  }
}

void Ema::update() {
  const c10::AutoGradMode no_gradient(false);
  for (Value& value : values_) value.average.lerp_(value.of.to(at::kFloat), 1 - decay_);
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
