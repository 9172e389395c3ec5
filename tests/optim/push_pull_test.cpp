// Push-pull in the optimizer: gradients as they come, and what begins anew. Its equation: virtual_test.cpp.
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/optim/optimizer.h"
#include "starling/transport/c10d/virtual_collectives.h"
#include "tests/optim/flock.h"
#include "tests/refusal.h"
#include "tests/virtual_workers.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr std::int64_t kSeveralBlocks = 200'000;
const Options kPushPull{
    .topology = "n-peer-exponential-1", .scheme = "async-push-pull", .block_bytes = 256 << 10};

// The second parameter's gradients lie in another order, the third has none, and once one is not finite.
TEST(PushPull, AloneItIsTheRuleWhateverTheGradientsAre) {
  flock(1, [](int, World& world) {
    std::vector<std::string> warnings;
    world.log = [&](Level level, const std::string& line) {
      if (level == Level::warning) warnings.push_back(line);
    };
    const Tensor p = parameter({kSeveralBlocks}, 1), q = parameter({64, 48}, 2), unused = parameter({10}, 3);
    Tensor x = p.detach().clone(), y = q.detach().clone();
    Optimizer optimizer({p, q, unused}, SGD{.lr = 0.1, .weight_decay = 0.5}, kPushPull, world);
    ASSERT_GT(optimizer.block_sizes().size(), 3U);
    for (int t = 0; t < 6; ++t) {
      p.mutable_grad() = at::full_like(p.detach(), t + 1);
      q.mutable_grad() = at::full({48, 64}, 0.1 * t).t();
      if (t == 3) q.mutable_grad()[0][0] = std::numeric_limits<float>::quiet_NaN();
      unused.mutable_grad() = Tensor();
      optimizer.step();
      x = x - 0.1 * (t + 1 + 0.5 * x);
      y = y - 0.1 * (0.1 * (t == 3 ? 2 : t) + 0.5 * y);
    }
    EXPECT_TRUE(at::allclose(p.detach(), x, 1e-5, 1e-6));
    EXPECT_TRUE(at::allclose(q.detach(), y, 1e-5, 1e-6));
    EXPECT_TRUE(is_all(unused, 3));
    EXPECT_THAT(warnings, testing::ElementsAre(testing::HasSubstr("the gradient is not finite")));
  });
}

// f(rank, world, time) on virtual workers.
void virtually(int n, const std::function<void(int, World&, VirtualTime&)>& f) {
  const auto time = std::make_shared<VirtualTime>(n);
  std::vector<World> worlds = World::threads(n);
  const auto transports = local_transports(virtual_network(time, std::numeric_limits<double>::infinity()));
  const auto collectives = virtual_collectives(time, [](int, std::size_t) { return Duration(0); });
  virtual_workers(*time, n, [&](int rank) {
    World& world = worlds[static_cast<std::size_t>(rank)];
    world.make_transport = transports;
    world.make_collectives = collectives;
    f(rank, world, *time);
    time->sleep(10s);  // others still push
  });
}

TEST(PushPull, WhoHasNoGradientGoesByThatOfOthers) {
  virtually(2, [](int rank, World& world, VirtualTime& time) {
    const Tensor x = parameter({kSeveralBlocks}, 1);
    Optimizer optimizer({x}, SGD{.lr = 0.05}, kPushPull, world);
    for (int t = 0; t < 400; ++t) {
      time.sleep(20ms * (rank + 1));
      x.mutable_grad() = rank == 0 ? x.detach() - 5 : Tensor();
      optimizer.step();
    }
    const Consensus average(optimizer);
    EXPECT_NEAR(x.detach().min().item<double>(), 5, 0.02);
    EXPECT_NEAR(x.detach().max().item<double>(), 5, 0.02);
  });
}

// Who waits takes its own gradient out of what is tracked, and keeps nothing: who goes on comes to what is best for itself. And all
// that go on after they have waited to what is best for all.
TEST(PushPull, WhoWaitsHandsOver) {
  virtually(3, [](int rank, World& world, VirtualTime& time) {
    const Tensor x = parameter({kSeveralBlocks});
    Optimizer optimizer({x}, SGD{.lr = 0.05}, kPushPull, world);
    const auto train = [&](int steps) {
      for (int t = 0; t < steps; ++t) {
        time.sleep(20ms);
        x.mutable_grad() = x.detach() - 10 * rank;
        optimizer.step();
      }
    };
    train(rank == 2 ? 400 : 20);
    if (rank == 2) {
      EXPECT_NEAR(x.min().item<double>(), 20, 0.01);
      EXPECT_NEAR(x.max().item<double>(), 20, 0.01);
    }
    {
      const Consensus average(optimizer);
    }
    train(400);
    const Consensus average(optimizer);
    EXPECT_NEAR(x.min().item<double>(), 10, 0.1);
    EXPECT_NEAR(x.max().item<double>(), 10, 0.1);
  });
}

// After which nothing is left of what was tracked before, in doubt or not: the best for all is the mean again.
TEST(PushPull, BeginsAnewWithAParameterGroupAndAtARestart) {
  virtually(3, [](int rank, World& world, VirtualTime& time) {
    const Tensor x = parameter({1000}), late = parameter({1000}, -4);
    std::vector<Tensor> all{x};
    Optimizer optimizer({x}, SGD{.lr = 0.05}, kPushPull, world);
    const auto train = [&](int steps, double to) {
      for (int t = 0; t < 3 * steps / (rank + 1); ++t) {  // all end at the same time
        time.sleep(20ms * (rank + 1));
        for (const Tensor& each : all) each.mutable_grad() = each.detach() - to * rank;
        optimizer.step();
      }
    };
    train(10, 50);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({late}));
    all.push_back(late);
    train(10, 50);
    optimizer.restart(0);
    train(500, 10);
    const Consensus average(optimizer);
    for (const Tensor& each : all) EXPECT_NEAR(each.mean().item<double>(), 10, 0.1);
  });
}

// Else its share of the mass would halve until what it does moves it out of range.
TEST(AsynchronousPushSum, NobodyPushesToWhoWaits) {
  virtually(3, [](int rank, World& world, VirtualTime& time) {
    const Tensor x = parameter({1000});
    Options options = kPushPull;
    options.scheme = "async-push-sum";
    Optimizer optimizer({x}, SGD{.lr = 0.05}, options, world);
    for (int t = 0; t < (rank == 2 ? 400 : 5); ++t) {
      time.sleep(20ms);
      x.mutable_grad() = x.detach() - 10;
      optimizer.step();
    }
    const Tensor mine = x.detach().clone();
    const Consensus average(optimizer);
    if (rank == 2) {
      EXPECT_NEAR(mine.mean().item<double>(), 10, 0.01);
    }
  });
}

// Where nobody has a gradient the mean stays, weighed as the workers were.
TEST(AsynchronousPushSum, KeepsItsWeightsWhereAParameterGroupIsAdded) {
  virtually(3, [](int rank, World& world, VirtualTime& time) {
    const Tensor x = parameter({1000}), late = parameter({10});
    Options options = kPushPull;
    options.scheme = "async-push-sum";
    Optimizer optimizer({x}, SGD{.lr = 0.05}, options, world);
    const auto train = [&](int steps, double to) {
      for (int t = 0; t < steps; ++t) {
        time.sleep(20ms * (rank + 1));
        x.mutable_grad() = to == 0 ? at::zeros_like(x.detach()) : x.detach() - to * rank;
        optimizer.step();
      }
    };
    const auto mean = [&] {
      const Consensus average(optimizer);
      return x.mean().item<double>();
    };
    train(30, 10);
    const double before = mean();
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({late}));
    train(20, 0);
    EXPECT_NEAR(mean(), before, 1e-4);
    EXPECT_GT(before, 1);
  });
}

TEST(PushPull, WhatCannotBeIsRefusedInOneLine) {
  const auto refused = [](const std::function<void(Options&)>& change) {
    return refusal([&] {
      Options options = kPushPull;
      change(options);
      Optimizer optimizer({at::zeros({2}).set_requires_grad(true)}, SGD{}, options, World::alone());
      optimizer.scale_gradients(0.5F);
    });
  };
  EXPECT_EQ(
      refused([](Options& o) { o.wire = Wire::fp16; }),
      "scheme \"async-push-pull\" needs wire fp32, bf16, not \"fp16\": of tracked gradients that are small "
      "nothing would move");
  EXPECT_EQ(refused([](Options& o) { o.loss_scaling = LossScaling{}; }),
            "scheme \"async-push-pull\" takes no loss_scaling: gradients of all workers are added up, and "
            "each has a "
            "scale of its own");
  EXPECT_EQ(refused([](Options& o) { o.skip_not_finite = true; }),
            "scheme \"async-push-pull\" takes no skip_not_finite: a gradient that is not finite is left out "
            "of what is "
            "tracked anyway");
  EXPECT_EQ(refused([](Options&) {}),
            "scale_gradients is not for scheme \"async-push-pull\": gradients of all workers are added up, "
            "and each "
            "would have a scale of its own");
}

}  // namespace
}  // namespace starling
