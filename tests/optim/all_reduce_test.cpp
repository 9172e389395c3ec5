// The baseline beside plain loops in double: during backward(), inside step(), and around torch's
// own optimizers.
#include <stdexcept>

#include <torch/nn/utils/clip_grad.h>

#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;
using testing::HasSubstr;

const Options kAllReduce{.scheme = "all-reduce"};

double mean_centre(int t) {
  double sum = 0;
  for (int i = 0; i < kWorkers; ++i) sum += centre(i, t) / kWorkers;
  return sum;
}

// d/dp of slope * sum(p) is slope.
void backward(const std::vector<Tensor>& parameters, double slope) {
  Tensor loss = at::full({}, 0.0);
  for (const Tensor& p : parameters) loss = loss + p.sum() * slope;
  loss.backward();
}

TEST(AllReduce, IsOneWorkerOnTheMeanGradient) {
  const World one = World::alone();
  const Tensor reference = parameter({300}, 0.2);
  Optimizer plain({reference}, Adam{.lr = 0.05}, {}, one);
  for (int t = 1; t <= 10; ++t) {
    reference.mutable_grad() = at::full({300}, mean_centre(t));
    plain.step();
  }
  for (const bool by_hand : {true, false}) {
    flock(kWorkers, [&](int i, World& world) {
      const Tensor p = parameter({300}, 0.2), sometimes = parameter({5}, 1), never = parameter({5}, 1);
      Optimizer optimizer({p, sometimes, never}, Adam{.lr = 0.05}, kAllReduce, world);
      for (int t = 1; t <= 10; ++t) {
        optimizer.zero_grad();
        if (by_hand) {
          p.mutable_grad() = at::full({300}, centre(i, t));
          if (i == 1) sometimes.mutable_grad() = at::ones({5});
        } else {
          (i == 1 ? p.sum() * centre(i, t) + sometimes.sum() : p.sum() * centre(i, t)).backward();
        }
        optimizer.step();
        // One worker's gradient reaches all.
        EXPECT_TRUE(is_all(p.grad(), mean_centre(t)));
        EXPECT_TRUE(is_all(sometimes.grad(), 1.0 / kWorkers));
        EXPECT_FALSE(never.grad().defined());
      }
      EXPECT_TRUE(at::allclose(p.detach(), reference.detach(), 1e-5, 1e-6));
      EXPECT_LT(sometimes.detach().max().item<float>(), 0.6);
      EXPECT_TRUE(at::equal(never.detach(), at::ones({5})));
      EXPECT_EQ(optimizer.statistics().bytes_sent / 10, 2 * (310 + 3) * 4 * 2 / 3);
    });
  }
}

// The parameters lie in five blocks. When torch reaches the gradient of the first one, the later
// ones are already sent.
TEST(AllReduce, SendsBucketsWhileBackwardRuns) {
  flock(kWorkers, [](int i, World& world) {
    const Tensor first = parameter({70'000}, 1), second = parameter({200'000}, 1),
                 third = parameter({10'000}, 1);
    Optimizer optimizer({first, second, third}, SGD{.lr = 1}, kAllReduce, world);
    std::uint64_t under_way = 0;
    first.register_hook([&](const Tensor&) { under_way = optimizer.statistics().bytes_sent; });
    // Used in the order of the list: gradients come in the reverse order.
    Tensor y = first.sum();
    y = y * second.sum() / 200'000;
    y = y * third.sum() / 10'000;
    (y * centre(i, 0)).backward();
    const std::uint64_t all = optimizer.statistics().bytes_sent;
    EXPECT_GT(under_way, all / 2);
    EXPECT_LT(under_way, all);
    EXPECT_TRUE(is_all(first.grad(), mean_centre(0)));  // before step()
    EXPECT_TRUE(is_all(second.grad(), mean_centre(0) * 70'000 / 200'000));
    EXPECT_TRUE(is_all(third.grad(), mean_centre(0) * 70'000 / 10'000));
    optimizer.step();
    EXPECT_EQ(optimizer.statistics().bytes_sent, all);
    EXPECT_TRUE(is_all(first, 1 - mean_centre(0)));
  });
}

TEST(AllReduce, AccumulationSendsOnceUnderNoSync) {
  constexpr int kPasses = 4;
  for (const bool no_sync : {true, false}) {
    for (const bool last_too : {true, false}) {
      flock(kWorkers, [&](int i, World& world) {
        const Tensor p = parameter({100'000}, 0);
        Optimizer optimizer({p}, SGD{.lr = 1}, kAllReduce, world);
        double x = 0;
        for (int t = 1; t <= 3; ++t) {
          optimizer.zero_grad();
          for (int pass = 0; pass < kPasses; ++pass) {
            std::optional<NoSync> accumulating;
            if (no_sync && (last_too || pass + 1 < kPasses)) accumulating.emplace(optimizer);
            backward({p}, centre(i, t + pass));
          }
          optimizer.step();
          for (int pass = 0; pass < kPasses; ++pass) x -= mean_centre(t + pass);
          EXPECT_TRUE(is_all(p, x)) << no_sync << last_too << t;
        }
        const std::uint64_t once = 2 * (100'000 + 2) * 4 * 2 / 3;
        EXPECT_NEAR(static_cast<double>(optimizer.statistics().bytes_sent),
                    static_cast<double>(3 * once * (no_sync ? 1 : kPasses)), 100);
      });
    }
  }
}

TEST(AllReduce, ClippingAfterBackwardSeesTheMean) {
  flock(2, [](int i, World& world) {
    const Tensor p = parameter({4});
    Optimizer optimizer({p}, SGD{.lr = 1}, kAllReduce, world);
    backward({p}, i == 0 ? 100 : -94);  // the mean is 3, its norm 6
    torch::nn::utils::clip_grad_norm_({p}, 1);
    optimizer.step();
    EXPECT_TRUE(is_all(p, -0.5));
  });
}

TEST(AllReduce, AroundTorchsOptimizer) {
  const Tensor reference = parameter({90'000}, 0.2);
  torch::optim::AdamW plain({reference}, torch::optim::AdamWOptions(0.05));
  for (int t = 1; t <= 6; ++t) {
    reference.mutable_grad() = at::full({90'000}, mean_centre(t));
    plain.step();
  }
  flock(kWorkers, [&](int i, World& world) {
    const Tensor p = parameter({90'000}, 0.2);
    torch::optim::AdamW inner({p}, torch::optim::AdamWOptions(0.05));
    Optimizer optimizer(inner, kAllReduce, world);
    for (int t = 1; t <= 6; ++t) {
      optimizer.zero_grad();
      backward({p}, centre(i, t));
      optimizer.step();
    }
    EXPECT_TRUE(at::allclose(p.detach(), reference.detach(), 1e-5, 1e-6));
  });
}

// Frozen parameters do not delay the others. An unfrozen one takes part from its first pass on.
TEST(AllReduce, AParameterMayBeFrozenAndUnfrozen) {
  flock(2, [](int i, World& world) {
    const Tensor early = parameter({70'000}), late = parameter({70'000});
    late.set_requires_grad(false);
    Optimizer optimizer({early, late}, SGD{.lr = 1}, kAllReduce, world);
    const auto step = [&] {
      optimizer.zero_grad();
      std::vector<Tensor> used;
      if (early.requires_grad()) used.push_back(early);
      if (late.requires_grad()) used.push_back(late);
      backward(used, i == 0 ? 1 : 3);
      optimizer.step();
    };
    step();
    EXPECT_TRUE(is_all(early, -2) && is_all(late, 0));
    late.set_requires_grad(true);
    step();
    step();
    EXPECT_TRUE(is_all(early, -6) && is_all(late, -4));
    early.set_requires_grad(false);
    step();
    EXPECT_TRUE(is_all(early, -6) && is_all(late, -6));
  });
}

TEST(AllReduce, NoticesAPassThatFailed) {
  const Tensor first = parameter({2}), second = parameter({2});
  Optimizer optimizer({first, second}, SGD{.lr = 1}, kAllReduce, World::alone());
  const auto hook =
      first.register_hook([](const Tensor& g) -> Tensor { throw std::runtime_error("no " + g.toString()); });
  const auto pass = [&] {
    const Tensor y = first.sum();
    (y * second.sum()).backward();
  };
  EXPECT_THROW(pass(), std::runtime_error);
  first.remove_hook(hook);
  EXPECT_THAT(refusal<Error>(pass), HasSubstr("a second time in one backward pass, or the last pass failed"));
}

TEST(AllReduce, LeavesNothingInTheParameters) {
  const Tensor p = parameter({2});
  {
    const Optimizer optimizer({p}, SGD{.lr = 1}, kAllReduce, World::alone());
  }
  backward({p}, 1);
  EXPECT_TRUE(is_all(p.grad(), 1));
}

}  // namespace
}  // namespace starling
