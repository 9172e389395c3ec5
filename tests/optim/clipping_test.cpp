// Options::clip and skip_not_finite. SchemeContract tests them, and clear_gradients, with every
// scheme.
#include <torch/nn/utils/clip_grad.h>

#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;

TEST(Clipping, AllReduceClipsTheMeanGradient) {
  flock(2, [](int, World& world) {
    const Tensor p = at::zeros({4}).set_requires_grad(true);
    Optimizer optimizer({p}, SGD{.lr = 1}, {.scheme = "all-reduce", .clip = 1}, world);
    p.mutable_grad() = at::full({4}, world.rank == 0 ? 100.0 : -99.8);  // the mean is 0.1, its norm 0.2
    optimizer.step();
    EXPECT_TRUE(at::allclose(p.detach(), at::full({4}, -0.1), 1e-3));
    p.mutable_grad() = at::full({4}, 3.0);  // the mean's norm is 6
    optimizer.step();
    EXPECT_TRUE(at::allclose(p.detach(), at::full({4}, -0.1 - 0.5), 1e-3));
  });
}

void expect_a_bad_gradient_is_skipped(bool around) {
  flock(2, [around](int, World& world) {
    const Tensor p = at::zeros({100}).set_requires_grad(true);
    const Options options{.topology = "complete", .skip_not_finite = true};
    torch::optim::SGD torchs({p}, torch::optim::SGDOptions(1).momentum(0.5));
    Optimizer optimizer = around ? Optimizer(torchs, options, world)
                                 : Optimizer({p}, SGD{.lr = 1, .momentum = 0.5}, options, world);
    const auto step = [&](double gradient) {
      p.mutable_grad() = at::full({100}, gradient);
      optimizer.step();
      return p.detach()[50].item<double>();
    };
    EXPECT_EQ(step(world.rank), -world.rank);
    // Worker 1 skips its step: its momentum stays 1, and its parameters become the mean of 0 and
    // -1.
    const double bad = std::numeric_limits<double>::infinity();
    EXPECT_EQ(step(world.rank == 0 ? 0.0 : bad), -0.5);
    EXPECT_EQ(optimizer.statistics().skipped, static_cast<std::uint64_t>(world.rank));
    EXPECT_EQ(step(0), world.rank == 0 ? -0.5 : -1.0);
  });
}

TEST(Clipping, AStepWhoseGradientIsNotFiniteMixesOnly) {
  expect_a_bad_gradient_is_skipped(false);
  expect_a_bad_gradient_is_skipped(true);
}

TEST(Clipping, AScaleIsForOneStepEvenIfThatFails) {
  for (const std::optional<float> scale : {std::optional<float>(), std::optional(0.5F)}) {
    const Tensor p = parameter({4});
    Optimizer optimizer({p}, SGD{.lr = 1}, {}, World::alone());
    p.mutable_grad() = at::ones({4});
    {
      const Consensus average(optimizer);
      optimizer.scale_gradients(scale);
      EXPECT_THAT(refusal<UsageError>([&] { optimizer.step(); }),
                  testing::HasSubstr("step() within consensus()"));
    }
    optimizer.step();
    EXPECT_TRUE(is_all(p, -1)) << p;
    EXPECT_EQ(optimizer.statistics().skipped, 0U);
  }
}

TEST(Clipping, RefusesInOneLine) {
  const Tensor p = at::zeros({4}).set_requires_grad(true);
  const auto refused = [&](Options options) {
    return refusal<UsageError>([&] { Optimizer optimizer({p}, SGD{}, options, World::alone()); });
  };
  torch::optim::SGD inner({p}, 0.1);
  const auto refused_around = [&](Options options) {
    return refusal<UsageError>([&] { Optimizer optimizer(inner, options, World::alone()); });
  };
  EXPECT_EQ(refused({.clip = -1}), "clip = -1 is not allowed: it must be finite and at least 0");
  EXPECT_THAT(refused({.clip = std::nan("")}), testing::HasSubstr("clip = nan is not allowed"));
  EXPECT_THAT(refused_around({.clip = 1}), testing::HasSubstr("clip_grad_norm_ before step()"));
  EXPECT_THAT(refused_around({.loss_scaling = LossScaling{}}),
              testing::HasSubstr("clip_grad_norm_ before step()"));
  EXPECT_THAT(refused_around({.clear_gradients = true}), testing::HasSubstr("zero_grad()"));
  Optimizer around(inner, {}, World::alone());
  EXPECT_EQ(refusal<UsageError>([&] { around.scale_gradients(0.5f); }),
            "scale_gradients needs one of Starling's rules: another optimizer reads .grad as it is");
}

}  // namespace
}  // namespace starling
