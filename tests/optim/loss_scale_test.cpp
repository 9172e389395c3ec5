// Options::loss_scaling; saving is in checkpoint_test.cpp.
#include "starling/optim/loss_scale.h"

#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include "starling/core/error.h"
#include "starling/optim/optimizer.h"
#include "tests/optim/flock.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using at::Tensor;

TEST(LossScale, MovesAsTorchsGradScaler) {
  LossScale scale({.initial = 1024, .grow_every = 3});
  std::vector<double> seen;
  // Of torch.amp.GradScaler(init_scale=1024, growth_interval=3) with inf in these steps.
  for (const bool finite : {true, true, true, false, true, true, false, false, true, true, true, true}) {
    scale.stepped(finite);
    seen.push_back(scale.value());
  }
  EXPECT_THAT(seen, testing::ElementsAre(1024, 1024, 2048, 1024, 1024, 1024, 512, 256, 256, 256, 512, 512));
  for (int t = 0; t < 1000; ++t) scale.stepped(false);
  EXPECT_GT(static_cast<float>(scale.value()), 0);
  EXPECT_TRUE(std::isfinite(1 / static_cast<float>(scale.value())));
  for (int t = 0; t < 10'000; ++t) scale.stepped(true);
  EXPECT_TRUE(std::isfinite(static_cast<float>(scale.value())));
}

// A power of two costs fp32 nothing: the same bits as without a scale, where the steps that overflow are left out.
TEST(LossScale, AnOverflowOnOneWorkerSkipsItsStepAndNoExchange) {
  constexpr int kSteps = 9, kOverflow = 5, kWorker = 1;
  for (const std::string scheme : {"cta", "atc"}) {
    for (const double clip : {0.0, 1.0}) {
      std::array<Tensor, kWorkers> scaled, plain;
      std::array<double, kWorkers> last{};
      flock(kWorkers, [&](int i, World& world) {
        const Tensor x = parameter({300}), y = parameter({300});
        Options options{.scheme = scheme, .clip = clip};
        Optimizer reference({y}, AdamW{.lr = 0.1}, options, world);
        options.loss_scaling = LossScaling{.initial = 1024, .grow_every = 4};
        Optimizer optimizer({x}, AdamW{.lr = 0.1}, options, world);
        for (int t = 1; t <= kSteps; ++t) {
          const bool overflows = i == kWorker && t == kOverflow;
          x.mutable_grad() = (x.detach() - centre(i, t)) * optimizer.loss_scale();
          if (overflows) x.mutable_grad()[7] = std::numeric_limits<float>::infinity();
          y.mutable_grad() = y.detach() - centre(i, t);
          if (overflows) reference.scale_gradients(std::nullopt);
          optimizer.step();
          reference.step();
        }
        last[static_cast<std::size_t>(i)] = optimizer.loss_scale();
        EXPECT_EQ(optimizer.statistics().skipped, i == kWorker ? 1U : 0U);
        EXPECT_EQ(optimizer.statistics().aborted, 0U);
        optimizer.consensus_distance();  // nobody leaves before
        scaled[static_cast<std::size_t>(i)] = x.detach(), plain[static_cast<std::size_t>(i)] = y.detach();
      });
      for (std::size_t i = 0; i < kWorkers; ++i) EXPECT_TRUE(at::equal(scaled[i], plain[i])) << scheme << i;
      EXPECT_THAT(last, testing::ElementsAre(4096, 2048, 4096));  // grown twice, one halved
    }
  }
}

TEST(LossScale, WithAllReduceAllSkipAndScaleAlike) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  flock(kWorkers, [](int i, World& world) {
    const Tensor x = at::full({300}, 0.5, at::kHalf).set_requires_grad(true);
    Optimizer optimizer(
        {x}, SGD{.lr = 0.1},
        {.scheme = "all-reduce", .loss_scaling = LossScaling{.initial = 16, .grow_every = 100}}, world);
    for (int t = 1; t <= 4; ++t) {
      x.mutable_grad() = at::full({300}, t == 3 && i == 2 ? inf : 0.25 * optimizer.loss_scale(), at::kHalf);
      optimizer.step();
    }
    EXPECT_EQ(optimizer.loss_scale(), 8);
    EXPECT_EQ(optimizer.statistics().skipped, 1U);
    EXPECT_TRUE(at::equal(x.detach(), at::full({300}, 0.5 - 3 * 0.1 * 0.25, at::kHalf)));
  });
}

TEST(LossScale, RefusesInOneLine) {
  const auto said = [](LossScaling scaling) {
    return refusal([&] { Optimizer({parameter({2})}, SGD{}, {.loss_scaling = scaling}, World::alone()); });
  };
  EXPECT_EQ(said({.initial = 0}), "loss_scaling: initial = 0 is not allowed: it must be above 0 and a float");
  EXPECT_EQ(said({.grow_every = 0}), "loss_scaling: grow_every = 0 is not allowed: it must be at least 1");
  const Tensor x = parameter({2});
  torch::optim::SGD inner({x}, torch::optim::SGDOptions(0.1));
  EXPECT_THAT(refusal([&] { Optimizer(inner, {.loss_scaling = LossScaling{}}, World::alone()); }),
              testing::HasSubstr("loss_scaling need one of Starling's rules"));
  Optimizer optimizer({x}, SGD{}, {.loss_scaling = LossScaling{}}, World::alone());
  EXPECT_EQ(refusal([&] { optimizer.scale_gradients(2); }),
            "scale_gradients and loss_scaling are not for the same optimizer: one of them");
}

}  // namespace
}  // namespace starling
