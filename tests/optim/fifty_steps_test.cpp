// Fifty steps of a model on a GPU and on the CPU. Without a GPU the test's code runs on the CPU.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "starling/optim/cuda/device.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;

// 50 steps of a small model with clipping, a skipped step, the average model, and a state that is
// saved and restored half-way. With "around", torch's optimizer is inside.
std::vector<Tensor> fifty_steps(int me, World& world, at::Device place, const std::string& scheme) {
  const bool around = scheme == "around";
  torch::nn::Sequential model(torch::nn::Linear(20, 50), torch::nn::Tanh(), torch::nn::Linear(50, 3));
  {
    const c10::AutoGradMode no_gradient(false);
    for (Tensor& p : model->parameters())
      p.copy_(at::arange(p.numel(), at::kFloat).sin().mul_(0.3).view_as(p));
  }
  model->to(place);
  std::unique_ptr<torch::optim::AdamW> inner;
  std::unique_ptr<Optimizer> optimizer;
  if (around) {
    inner = std::make_unique<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(0.01));
    optimizer = std::make_unique<Optimizer>(*model, *inner, Options{.wire = Wire::bf16}, world);
  } else {
    Options options = options_of(scheme_info(scheme));
    options.clip = 1, options.skip_not_finite = true;
    if (scheme == "a2cid2") options.scheme = {scheme, {{"eta", 0.5}}};  // alone it would have none
    optimizer = std::make_unique<Optimizer>(*model, AdamW{.lr = 0.01}, options, world);
  }
  std::vector<Tensor> after;
  const Tensor x = (at::arange(64 * 20, at::kFloat).reshape({64, 20}) * (me + 1)).sin().to(place);
  for (int t = 0; t < 50; ++t) {
    optimizer->zero_grad();
    const Tensor y = x.slice(1, t % 17, t % 17 + 3);
    (model->forward(x) - y).square().mean().backward();
    if (t == 20 && !around) model->parameters()[0].mutable_grad().fill_(INFINITY);  // skipped
    optimizer->step();
    if (t == 25) {
      const OptimizerState state = optimizer->state();
      OptimizerState copy{state.metadata, {}};
      for (const auto& [name, tensor] : state.tensors) copy.tensors.emplace(name, tensor.clone());
      optimizer->step();
      optimizer->set_state(copy);
    }
  }
  if (!around) {
    EXPECT_EQ(optimizer->statistics().skipped, 1U);
  }
  after.push_back(at::full({1}, optimizer->consensus_distance(), at::kFloat));
  {
    const Consensus average(*optimizer);
    for (const Tensor& p : model->parameters()) after.push_back(p.detach().cpu().clone());
  }
  for (const Tensor& p : model->parameters()) after.push_back(p.detach().cpu().clone());
  return after;
}

// A scheme in pairs has only one worker here, since several do not repeat their bits.
std::vector<std::vector<Tensor>> fifty_steps_of_all(at::Device place, const std::string& scheme,
                                                    int workers = 2) {
  return results_of(scheme != "around" && averages_in_pairs({.scheme = scheme}) ? 1 : workers,
                    [&](int i, World& world) { return fifty_steps(i, world, place, scheme); });
}

// With "around", and without those whose workers may not skip a step on their own.
std::vector<std::string> schemes_that_skip() {
  std::vector<std::string> names{"around"};
  for (const SchemeInfo* const info : schemes()) {
    if (!info->traits.sums_gradients) names.emplace_back(info->name);
  }
  return names;
}

TEST(OnAGpu, FiftyStepsAreThoseOfTheProcessor) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  for (const std::string& scheme : schemes_that_skip()) {
    SCOPED_TRACE(scheme);
    const int workers = scheme == "all-reduce" ? 1 : 2;  // gradient_average.h: no threads that share a GPU
    const auto there = fifty_steps_of_all(at::Device(at::kCUDA, 0), scheme, workers);
    const auto here = fifty_steps_of_all(at::kCPU, scheme, workers);
    for (std::size_t i = 0; i < here.size(); ++i) {
      for (std::size_t k = 0; k < here[i].size(); ++k)
        EXPECT_TRUE(at::allclose(there[i][k], here[i][k], 1e-3, 1e-3)) << "worker " << i << ", tensor " << k;
    }
  }
}

// The same on the CPU, so that this code runs without a GPU too. Workers agree on the average.
TEST(OnAGpu, FiftyStepsOnTheProcessorAreTheSameTwice) {
  for (const std::string& scheme : schemes_that_skip()) {
    SCOPED_TRACE(scheme);
    const auto once = fifty_steps_of_all(at::kCPU, scheme), again = fifty_steps_of_all(at::kCPU, scheme);
    for (std::size_t k = 0; k < once[0].size(); ++k) EXPECT_TRUE(at::equal(once[0][k], again[0][k]));
    if (once.size() == 1) continue;
    for (std::size_t k = 1; k < 5; ++k) EXPECT_TRUE(at::allclose(once[0][k], once[1][k], 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace starling
