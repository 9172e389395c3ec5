// Push-pull in the optimizer: unusual gradients, waiting workers, and new beginnings.
// virtual_test.cpp has its equation.
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr std::int64_t kSeveralBlocks = 200'000;
const Options kPushPull{
    .topology = "n-peer-exponential-1", .scheme = "async-push-pull", .block_bytes = 256 << 10};

// The second parameter's gradients have another order in memory, the third one has none, and one
// gradient is not finite.
TEST(PushPull, AloneItIsTheRuleWhateverTheGradientsAre) {
  flock(1, [](int, World& world) {
    LogLines warnings;
    world.log = warnings.log();
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
    EXPECT_THAT(warnings.all(), testing::ElementsAre(testing::HasSubstr("the gradient is not finite")));
  });
}

// f(rank, world, time) on virtual workers.
void virtually(int n, const std::function<void(int, World&, VirtualTime&)>& f) {
  virtual_flock(n, [&](int rank, World& world, VirtualTime& time) {
    f(rank, world, time);
    time.sleep(10s);  // others still push
  });
}

TEST(PushPull, AWorkerWithoutGradientsFollowsTheOthers) {
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

// A worker that waits takes its own gradient out of the tracked sum, and keeps no part of the sum.
// So the worker that goes on reaches its own optimum. Once all train again, they reach that of all.
TEST(PushPull, AWaitingWorkerHandsOver) {
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

// Afterwards nothing is left of the gradients tracked before, in doubt or not. The optimum of all
// is the mean again.
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

// Otherwise pushes would halve its share of the mass again and again.
TEST(AsynchronousPushSum, NobodyPushesToAWaitingWorker) {
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

// Without gradients the weighted mean stays.
TEST(AsynchronousPushSum, KeepsItsWeightsWhenAParameterGroupIsAdded) {
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

}  // namespace
}  // namespace starling
