// A model whose compute is a sleep, so that several hosts fit on a machine with few cores.
// Gradients, updates and the link stay real.
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "starling/core/clock.h"
#include "starling/core/timeline.h"

namespace bench {

// The requested and the actual time of all sleeps of this process. The actual time is longer if a
// ready thread found no core.
struct Slept {
  double asked = 0, took = 0;
};
inline Slept slept;

// Takes the excess of one sleep off the next.
inline void sleep_for(double seconds) {
  static starling::Duration late{};
  const auto begin = starling::Clock::now();
  const auto due =
      begin + std::chrono::duration_cast<starling::Duration>(std::chrono::duration<double>(seconds)) - late;
  std::this_thread::sleep_until(due);
  const auto end = starling::Clock::now();
  late = end - due;
  slept.asked += seconds;
  slept.took += starling::seconds(end - begin);
}

// A third of the time in forward, the rest in backward, which leaves a gradient for the weight.
struct SleepingLayer : torch::autograd::Function<SleepingLayer> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, double seconds) {
    context->saved_data["seconds"] = seconds;
    context->saved_data["length"] = weight.numel();
    sleep_for(seconds / 3);
    return x + 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    sleep_for(context->saved_data["seconds"].toDouble() * 2 / 3);
    return {gradients[0], at::full({context->saved_data["length"].toInt()}, 1e-3), at::Tensor()};
  }
};

// One weight for each layer, all of the same length.
inline std::vector<at::Tensor> sleeping_weights(std::int64_t parameters, std::int64_t layers) {
  std::vector<at::Tensor> weights;
  for (std::int64_t i = 0; i < layers; ++i)
    weights.push_back(at::zeros({parameters / layers}).set_requires_grad(true));
  return weights;
}

// Forward and backward of this duration.
inline void sleeping_gradient(const std::vector<at::Tensor>& weights, double seconds,
                              starling::Timeline* timeline = nullptr) {
  at::Tensor x = at::zeros({1}).set_requires_grad(true);
  {
    const starling::Timeline::Scope span(timeline, {.name = "forward"});
    for (const at::Tensor& weight : weights)
      x = SleepingLayer::apply(x, weight, seconds / static_cast<double>(weights.size()));
  }
  const starling::Timeline::Scope span(timeline, {.name = "backward"});
  x.backward();
}

}  // namespace bench
