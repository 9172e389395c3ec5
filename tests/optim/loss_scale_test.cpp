// Options::loss_scaling. resume_test.cpp has saving, SchemeContract the schemes.
#include "starling/optim/loss_scale.h"

#include "tests/optim/flock.h"

namespace starling {
namespace {

using at::Tensor;

TEST(LossScale, MovesAsTorchsGradScaler) {
  LossScale scale({.initial = 1024, .grow_every = 3});
  std::vector<double> seen;
  // The scales of torch.amp.GradScaler(init_scale=1024, growth_interval=3), with inf in these
  // steps.
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
