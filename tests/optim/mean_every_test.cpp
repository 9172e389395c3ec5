// Options::mean_every: gossip with an exact mean now and then (Gossip-PGA).
//
//   x_i(t+1) = step of the scheme,   then every K steps   x_i(t+1) <- 1/n Sum_j x_j(t+1)
#include <fmt/format.h>

#include "starling/topology/schedules.h"
#include "tests/mixed.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using at::Tensor;

constexpr double kLr = 0.2;

// Plain loops: the parameters of all workers after each step.
std::vector<std::vector<double>> plain_loops(const std::string& scheme, int n, int steps, int every) {
  const Schedule schedule = make_schedule("ring", n);
  std::vector<double> x(static_cast<std::size_t>(n), 1);
  std::vector<std::vector<double>> after;
  for (int t = 0; t < steps; ++t) {
    std::vector<double> move(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) move[i] = kLr * (x[i] - centre(static_cast<int>(i), t));
    if (scheme == "cta") x = mixed(x, schedule.at(t));
    for (std::size_t i = 0; i < x.size(); ++i) x[i] -= move[i];
    if (scheme == "atc") x = mixed(x, schedule.at(t));
    if ((t + 1) % every == 0) x.assign(x.size(), std::accumulate(x.begin(), x.end(), 0.0) / n);
    after.push_back(x);
  }
  return after;
}

TEST(MeanEvery, IsTheEquation) {
  constexpr int kMany = 5, kSteps = 20;
  for (const std::string scheme : {"cta", "atc"}) {
    for (const int every : {1, 3, 7}) {
      const auto expected = plain_loops(scheme, kMany, kSteps, every);
      flock(kMany, [&](int i, World& world) {
        const Tensor p = parameter({70'000}, 1);
        Optimizer optimizer({p}, SGD{.lr = kLr}, {.topology = "ring", .scheme = scheme, .mean_every = every},
                            world);
        for (int t = 0; t < kSteps; ++t) {
          train({p}, optimizer, i, t, t + 1);
          ASSERT_TRUE(is_all(p, expected[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)]))
              << scheme << ", every " << every << ", step " << t << ": " << p[0];
        }
        nobody_leaves_yet(optimizer);
      });
    }
  }
}

// With K = 1 the workers are one: the run is that of an all-reduce.
TEST(MeanEvery, OneIsAnAllReduceOfParameters) {
  constexpr int kMany = 4, kSteps = 12;
  const auto ends = [&](const Options& options) {
    return results_of(kMany, [&](int i, World& world) {
      const Tensor p = parameter({70'000}, 1);
      Optimizer optimizer({p}, SGD{.lr = kLr, .momentum = 0.9}, options, world);
      train({p}, optimizer, i, 0, kSteps);
      nobody_leaves_yet(optimizer);
      return p.detach();
    });
  };
  const auto one = ends({.topology = "ring", .mean_every = 1}), all_reduce = ends({.scheme = "all-reduce"});
  const auto without = ends({.topology = "ring"});
  for (std::size_t i = 0; i < one.size(); ++i) {
    EXPECT_TRUE(at::equal(one[i], one[0])) << i;
    EXPECT_TRUE(at::allclose(one[i], all_reduce[i], 1e-5, 1e-6)) << one[i][0] << all_reduce[i][0];
    EXPECT_FALSE(at::allclose(without[i], all_reduce[i], 1e-3, 1e-3)) << i;
  }
}

class MeanEveryOf : public EveryScheme {};

// The gradients do not depend on x, so the mean of all is known.
TEST_P(MeanEveryOf, AllAreTheExactMeanThen) {
  constexpr int kEvery = 4;
  Options with = without_momentum();
  with.mean_every = kEvery;
  if (!info().takes_means()) {
    EXPECT_THAT(refusal<UsageError>([&] { Optimizer({parameter({2})}, SGD{}, with, World::alone()); }),
                testing::StartsWith(fmt::format("scheme \"{}\" takes no mean_every: ", info().name)));
    return;
  }
  flock(kMany, [&](int i, World& world) {
    const Tensor p = parameter({5000}, 1);
    Optimizer optimizer({p}, SGD{.lr = kLr}, with, world);
    double mean = 1;
    bool were_apart = false;
    for (int t = 0; t < 3 * kEvery; ++t) {
      p.mutable_grad() = at::full_like(p.detach(), centre(i, t));
      optimizer.step();
      for (int j = 0; j < kMany; ++j) mean -= kLr * centre(j, t) / kMany;
      const double distance = optimizer.consensus_distance();
      if ((t + 1) % kEvery != 0) {
        were_apart = were_apart || distance > 1e-3;
        continue;
      }
      EXPECT_LT(distance, 1e-6) << t;
      EXPECT_TRUE(is_all(p, mean)) << t << ": " << p[0] << ", not " << mean;
    }
    EXPECT_TRUE(were_apart);
    expect_undisturbed(optimizer);
  });
}

STARLING_EVERY_SCHEME(MeanEveryOf);

// Buffers and masters follow; the state of the rule does not.
TEST(MeanEvery, AveragesBuffersAndMastersAndLeavesTheRule) {
  flock(kWorkers, [&](int i, World& world) {
    const Tensor p = parameter({1000}, 1, at::kBFloat16), buffer = at::zeros({2});
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<Tensor>{p});
    Optimizer optimizer(groups, SGD{.lr = kLr, .momentum = 0.9}, {.topology = "ring", .mean_every = 2}, world,
                        {buffer});
    buffer.fill_(10.0 * i);
    double mean = 1;
    for (int t = 0; t < 2; ++t) {
      p.mutable_grad() = at::full_like(p.detach(), 1.0 + i);
      optimizer.step();
      EXPECT_EQ(buffer[0].item<double>(), t == 0 ? 10.0 * i : 10.0);
      mean -= kLr * 2 * (t == 0 ? 1 : 1.9);
    }
    const OptimizerState state = optimizer.state();
    EXPECT_TRUE(is_all(state.tensors.at("master.0.0"), mean)) << state.tensors.at("master.0.0")[0];
    EXPECT_TRUE(is_all(state.tensors.at("m.0.0"), 1.9 * (1 + i)));
    nobody_leaves_yet(optimizer);
  });
}

TEST(MeanEvery, AllWorkersHaveTheSame) {
  EXPECT_EQ(refusal<UsageError>([] {
              flock(2, [](int i, World& world) {
                const Optimizer optimizer({parameter({4})}, SGD{}, {.mean_every = 2 + i}, world);
              });
            }),
            "the workers differ in mean_every: 2 at worker 0, 3 at worker 1; it must be the same on all");
}

}  // namespace
}  // namespace starling
