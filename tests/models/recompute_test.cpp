// Blocks whose activations are computed again: the same numbers, from less memory.
#include "starling/models/recompute.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include "starling/models/autocast.h"
#include "starling/models/gpt2.h"
#include "starling/models/resnet.h"
#include "starling/models/transformer.h"

namespace starling {
namespace {

using at::Tensor;

// A model, and its loss on some data.
struct Case {
  std::shared_ptr<torch::nn::Module> model;
  std::function<Tensor()> loss;
};

Case gpt2(bool recompute, std::int64_t layers = 3) {
  torch::manual_seed(3);
  const auto model = std::make_shared<Gpt2>(Gpt2Options{
      .vocabulary = 50, .context = 64, .width = 32, .heads = 2, .layers = layers, .recompute = recompute});
  const Tensor tokens = at::randint(50, {4, 64}, at::kLong), targets = at::randint(50, {4, 64}, at::kLong);
  return {model, [=] { return model->loss(tokens, targets); }};
}

// `of_its_own`: dropout draws from a generator of its own, not from torch's.
Case transformer(bool recompute, bool of_its_own, std::int64_t layers = 3) {
  torch::manual_seed(3);
  const auto model = std::make_shared<Transformer>(TransformerOptions{.vocabulary = 50,
                                                                      .width = 32,
                                                                      .heads = 2,
                                                                      .layers = layers,
                                                                      .inner = 64,
                                                                      .dropout = 0.3,
                                                                      .recompute = recompute});
  Tensor source = at::randint(2, 50, {4, 30}, at::kLong);
  source.narrow(0, 1, 2).narrow(1, 20, 10).fill_(Transformer::kPadding);
  const Tensor target = at::randint(2, 50, {4, 33}, at::kLong);
  return {model, [=] {
            std::optional<at::Generator> generator;
            if (of_its_own) generator = at::make_generator<at::CPUGeneratorImpl>(7);
            return model->loss(source, target, 0.1, at::Reduction::Mean, generator);
          }};
}

Case resnet(bool recompute, int depth, std::int64_t images = 3, std::int64_t side = 16) {
  torch::manual_seed(3);
  const auto model = make_resnet(
      {.depth = depth, .classes = 5, .small_images = true, .zero_init = false, .recompute = recompute});
  const Tensor batch = at::randn({images, 3, side, side});
  return {model, [=] { return model->forward(batch).square().sum(); }};
}

// All that two passes leave behind.
std::vector<Tensor> two_passes(const Case& of, bool autocast = false) {
  std::vector<Tensor> left;
  torch::manual_seed(5);
  for (int pass = 0; pass < 2; ++pass) {  // gradients add up, as with train.accumulate
    Tensor loss;
    {
      std::optional<Autocast> as;
      if (autocast) as.emplace(at::kCPU, at::kBFloat16);
      loss = of.loss();
    }
    left.push_back(loss.detach());
    loss.backward();
  }
  for (const Tensor& p : of.model->parameters()) left.push_back(p.grad());
  for (const Tensor& b : of.model->buffers()) left.push_back(b.clone());
  left.push_back(at::detail::getDefaultCPUGenerator().get_state());
  return left;
}

void expect_equal(const Case& plain, const Case& again, bool autocast = false) {
  const std::vector<Tensor> a = two_passes(plain, autocast), b = two_passes(again, autocast);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i << " of " << a.size();
}

TEST(Recompute, LeavesAllNumbersOfGpt2) { expect_equal(gpt2(false), gpt2(true)); }

TEST(Recompute, DropsTheSameValuesAgain) {
  for (const bool of_its_own : {true, false})
    expect_equal(transformer(false, of_its_own), transformer(true, of_its_own));
  // With dropout two passes differ, so equal numbers mean something.
  const std::vector<Tensor> passes = two_passes(transformer(true, false));
  EXPECT_FALSE(at::equal(passes[0], passes[1]));
}

TEST(Recompute, UpdatesRunningStatisticsOnce) {
  expect_equal(resnet(false, 18), resnet(true, 18));
  expect_equal(resnet(false, 50), resnet(true, 50));
}

TEST(Recompute, KeepsAutocast) {
  expect_equal(gpt2(false), gpt2(true), /*autocast=*/true);
  expect_equal(transformer(false, true), transformer(true, true), /*autocast=*/true);
  expect_equal(resnet(false, 18), resnet(true, 18), /*autocast=*/true);
}

TEST(Autocast, LeavesWhatWasThereBefore) {
  const at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
  {
    const Autocast half(at::kCPU, at::kHalf);
    {
      const Autocast narrow(at::kCPU, at::kBFloat16);
    }
    EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kHalf);
  }
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), type);
}

// The bytes that this thread holds beyond those at the start, and the most of them.
class Memory final : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    now += bytes;
    most = std::max(most, now);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t now = 0, most = 0;
};

struct Held {
  std::int64_t by_forward = 0;  // until backward() needs it
  std::int64_t most = 0;
};

Held held_by(const Case& of) {
  of.loss().backward();  // makes the gradients
  const auto memory = std::make_shared<Memory>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, memory);
  const Tensor loss = of.loss();
  Held held{.by_forward = memory->now};
  loss.backward();
  held.most = memory->most;
  return held;
}

TEST(Recompute, NeedsLessMemory) {
  const auto expect_less = [](const Case& plain, const Case& again, double forward, double most) {
    const Held a = held_by(plain), b = held_by(again);
    EXPECT_LT(static_cast<double>(b.by_forward), forward * static_cast<double>(a.by_forward));
    EXPECT_LT(static_cast<double>(b.most), most * static_cast<double>(a.most));
  };
  expect_less(gpt2(false, 12), gpt2(true, 12), 0.2, 0.3);
  expect_less(transformer(false, true, 12), transformer(true, true, 12), 0.2, 0.3);
  expect_less(resnet(false, 18, 16, 32), resnet(true, 18, 16, 32), 0.5, 0.9);
}

// f(x) = tanh(x W^T + b), which counts its calls.
struct Counted {
  torch::nn::Linear module{2, 2};
  int calls = 0;
  Tensor operator()(const Tensor& x) {
    return recomputed(*module,
                      [this](const auto& inputs) {
                        ++calls;
                        return at::tanh(module(inputs[0]));
                      },
                      {x});
  }
};

TEST(Recompute, CallsAgainOnlyForGradients) {
  Counted f;
  const Tensor x = at::randn({3, 2});
  {
    const torch::NoGradGuard no_gradient;
    EXPECT_FALSE(f(x).requires_grad());
  }
  EXPECT_EQ(f.calls, 1);
  const Tensor y = f(x);
  EXPECT_EQ(f.calls, 2);
  y.sum().backward();
  EXPECT_EQ(f.calls, 3);
  EXPECT_TRUE(f.module->weight.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Recompute, FrozenParametersGetNoGradient) {
  Counted f;
  f.module->weight.set_requires_grad(false);
  const Tensor x = at::randn({3, 2}).set_requires_grad(true);
  f(x).sum().backward();
  EXPECT_FALSE(f.module->weight.grad().defined());
  EXPECT_TRUE(f.module->bias.grad().defined());
  const Tensor same = x.detach().set_requires_grad(true);
  at::tanh(f.module(same)).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), same.grad()));
}

}  // namespace
}  // namespace starling
