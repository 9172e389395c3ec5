// Options::clip, skip_not_finite and clear_gradients.
#include <cmath>
#include <limits>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "starling/core/error.h"
#include "starling/optim/optimizer.h"
#include "tests/optim/flock.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using at::Tensor;

// Parameters of several blocks and sizes, one of them without a gradient.
std::vector<Tensor> few_parameters() {
  at::manual_seed(1);
  std::vector<Tensor> all;
  for (const int n : {7, 100'000, 1, 70'000, 5})
    all.push_back(at::randn({n}).div_(100).set_requires_grad(true));
  return all;
}

void set_gradients(const std::vector<Tensor>& all, int t) {
  at::manual_seed(static_cast<std::uint64_t>(t));
  for (std::size_t i = 0; i + 1 < all.size(); ++i) all[i].mutable_grad() = at::randn_like(all[i]);
}

TEST(Clipping, IsTorchsClipGradNormButLeavesTheGradient) {
  for (const std::string scheme : {"cta", "atc", "all-reduce"}) {
    for (const double clip : {10.0, 1e9}) {  // the norm is about 412
      const auto mine = few_parameters(), torchs = few_parameters();
      Optimizer optimizer(mine, AdamW{.lr = 0.01}, {.scheme = scheme, .clip = clip}, World::alone());
      Optimizer plain(torchs, AdamW{.lr = 0.01}, {.scheme = scheme}, World::alone());
      for (int t = 1; t <= 5; ++t) {
        set_gradients(mine, t);
        set_gradients(torchs, t);
        const Tensor before = mine[1].grad().clone();
        torch::nn::utils::clip_grad_norm_(torchs, clip);
        optimizer.step();
        plain.step();
        EXPECT_TRUE(at::equal(mine[1].grad(), before));
      }
      for (std::size_t i = 0; i < mine.size(); ++i) {
        EXPECT_TRUE(at::allclose(mine[i], torchs[i], 1e-5, 1e-7))
            << scheme << ", clip = " << clip << ", " << i;
      }
    }
  }
}

TEST(Clipping, AllReduceClipsTheMeanGradient) {
  flock(2, [](int, World& world) {
    const Tensor p = at::zeros({4}).set_requires_grad(true);
    Optimizer optimizer(std::vector<Tensor>{p}, SGD{.lr = 1}, {.scheme = "all-reduce", .clip = 1}, world);
    p.mutable_grad() = at::full({4}, world.rank == 0 ? 100.0 : -99.8);  // the mean is 0.1, its norm 0.2
    optimizer.step();
    EXPECT_TRUE(at::allclose(p.detach(), at::full({4}, -0.1), 1e-3));
    p.mutable_grad() = at::full({4}, 3.0);  // the mean's norm is 6
    optimizer.step();
    EXPECT_TRUE(at::allclose(p.detach(), at::full({4}, -0.1 - 0.5), 1e-3));
  });
}

TEST(Clipping, AStepWhoseGradientIsNotFiniteMixesOnly) {
  flock(2, [](int, World& world) {
    const Tensor p = at::zeros({100}).set_requires_grad(true);
    Optimizer optimizer(std::vector<Tensor>{p}, SGD{.lr = 1, .momentum = 0.5},
                        {.topology = "complete", .skip_not_finite = true}, world);
    const auto step = [&](double gradient) {
      p.mutable_grad() = at::full({100}, gradient);
      optimizer.step();
      return p.detach()[50].item<double>();
    };
    EXPECT_EQ(step(world.rank), -world.rank);
    // Worker 1 skips: its momentum stays 1, and what it has is the mean of 0 and -1.
    const double bad = std::numeric_limits<double>::infinity();
    EXPECT_EQ(step(world.rank == 0 ? 0.0 : bad), -0.5);
    EXPECT_EQ(optimizer.statistics().skipped, static_cast<std::uint64_t>(world.rank));
    EXPECT_EQ(step(0), world.rank == 0 ? -0.5 : -1.0);
  });
}

// Of blocks that share a parameter, of other strides than the parameter's, in bf16, of a step that is skipped, and of blocks that
// another worker of the node updates.
TEST(ClearGradients, LeavesZerosAndTheSameParameters) {
  const auto run = [](World& world, Options options) {
    const auto waves = [](std::int64_t n, double phase) { return (at::arange(n, at::kFloat) + phase).sin(); };
    std::vector<Tensor> all;
    for (const int n : {7, 200'000, 70'000}) all.push_back(waves(n, 0));
    all.push_back(waves(60'000, 0).view({300, 200}));
    if (options.hierarchy == "none") all.push_back(waves(100, 0).to(at::kBFloat16));
    for (Tensor& p : all) p.set_requires_grad(true);
    options.skip_not_finite = true;
    Optimizer optimizer(all, AdamW{.lr = 0.01}, options, world);
    EXPECT_GT(optimizer.block_sizes().size(), 3U);
    for (int t = 1; t <= 4; ++t) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        Tensor g = waves(all[i].numel(), 10 * t + world.rank).to(all[i].scalar_type()).view_as(all[i]);
        if (i == 3) g = g.t().contiguous().t();
        if (t == 3) g.select(0, 0).fill_(std::numeric_limits<float>::quiet_NaN());
        all[i].mutable_grad() = g;
      }
      if (t == 4) all[0].mutable_grad().reset();
      const auto version = all[1].grad()._version();
      optimizer.step();
      for (const Tensor& p : all) {
        if (!p.grad().defined()) continue;
        EXPECT_EQ(p.grad().count_nonzero().item<std::int64_t>() == 0, options.clear_gradients)
            << "step " << t;
      }
      EXPECT_TRUE(all[1].grad()._version() > version || !options.clear_gradients);
    }
    EXPECT_GT(optimizer.statistics().skipped, 0U);
    std::vector<Tensor> parameters;
    for (const Tensor& p : all) parameters.push_back(p.detach().clone());
    return parameters;
  };
  for (const Options& options : {Options{}, Options{.scheme = "atc"}, Options{.scheme = "all-reduce"},
                                 Options{.hierarchy = "node", .workers_per_node = 2}}) {
    SCOPED_TRACE(options.scheme.name + ", hierarchy " + options.hierarchy);
    std::vector<std::vector<Tensor>> kept(2), cleared(2);
    const auto on_two = [&](std::vector<std::vector<Tensor>>& of, bool clear) {
      flock(2, [&](int i, World& world) {
        Options mine = options;
        mine.clear_gradients = clear;
        of[static_cast<std::size_t>(i)] = run(world, mine);
      });
    };
    on_two(kept, false);
    on_two(cleared, true);
    for (std::size_t i = 0; i < kept.size(); ++i) {
      for (std::size_t k = 0; k < kept[i].size(); ++k) EXPECT_TRUE(at::equal(kept[i][k], cleared[i][k]));
    }
  }
}

TEST(Clipping, LossScalingIsTakenBackBeforeItClipsAndForOneStep) {
  for (const std::string scheme : {"cta", "atc", "all-reduce"}) {
    const auto scaled = few_parameters(), plain = few_parameters();
    const Options options{.scheme = scheme, .clip = 10};
    Optimizer mine(scaled, AdamW{.lr = 0.01}, options, World::alone());
    Optimizer other(plain, AdamW{.lr = 0.01}, options, World::alone());
    for (int t = 1; t <= 5; ++t) {
      set_gradients(scaled, t);
      set_gradients(plain, t);
      if (t == 3) {
        mine.scale_gradients(std::nullopt);  // an overflow: the other one has no step 3
        mine.step();
        continue;
      }
      if (t % 2 == 0) {
        for (const Tensor& p : scaled) {
          if (p.grad().defined()) p.mutable_grad().mul_(1024);
        }
        mine.scale_gradients(1.0f / 1024);
      }
      mine.step();
      other.step();
    }
    EXPECT_EQ(mine.statistics().skipped, 1U);
    for (std::size_t i = 0; i < scaled.size(); ++i)
      EXPECT_TRUE(at::allclose(scaled[i], plain[i], 1e-6, 1e-8)) << scheme << ", " << i;
  }
}

TEST(Clipping, RefusesInOneLine) {
  const Tensor p = at::zeros({4}).set_requires_grad(true);
  const auto refused = [&](Options options) {
    return refusal<UsageError>(
        [&] { Optimizer optimizer(std::vector<Tensor>{p}, SGD{}, options, World::alone()); });
  };
  torch::optim::SGD inner({p}, 0.1);
  const auto refused_around = [&](Options options) {
    return refusal<UsageError>([&] { Optimizer optimizer(inner, options, World::alone()); });
  };
  EXPECT_EQ(refused({.clip = -1}), "clip = -1 is not allowed: it must be finite and at least 0");
  EXPECT_THAT(refused({.clip = std::nan("")}), testing::HasSubstr("clip = nan is not allowed"));
  EXPECT_THAT(refused_around({.clip = 1}), testing::HasSubstr("clip_grad_norm_ before step()"));
  EXPECT_THAT(refused_around({.skip_not_finite = true}), testing::HasSubstr("clip_grad_norm_ before step()"));
  EXPECT_THAT(refused_around({.clear_gradients = true}), testing::HasSubstr("zero_grad()"));
  Optimizer around(inner, {}, World::alone());
  EXPECT_EQ(refusal<UsageError>([&] { around.scale_gradients(0.5f); }),
            "scale_gradients needs one of Starling's rules: another optimizer reads .grad as it is");
}

}  // namespace
}  // namespace starling
