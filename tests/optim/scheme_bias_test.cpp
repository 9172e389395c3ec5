// The end of a scheme with a constant learning rate, if the workers' losses differ:
//
//   f_i(x) = a_i / 2 (x - c_i)^2       the optimum of the sum: Sum_i a_i c_i / Sum_i a_i
//
// An exact scheme ends there. The others end beside it, where mixing and the workers' own gradients
// balance: at a distance that is proportional to the learning rate.
#include "tests/mixed.h"
#include "tests/optim/every_scheme.h"

namespace starling {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr double kLr = 0.05;

double a(int i) { return 0.5 + 0.4 * i; }
double c(int i) { return i * i - 2.0; }

class SchemeBias : public EveryScheme {};

constexpr int kFour = 4;

// Each worker's distance to the optimum.
std::vector<double> distances(std::vector<double> x) {
  double optimum = 0, all = 0;
  for (int i = 0; i < kFour; ++i) optimum += a(i) * c(i), all += a(i);
  for (double& value : x) value -= optimum / all;
  return x;
}

std::vector<double> run(const Options& options, double lr, int steps) {
  std::vector<double> ends(kFour);
  virtual_flock(kFour, [&](int i, World& world, VirtualTime& time) {
    const Tensor x = parameter({3});
    Optimizer optimizer({x}, SGD{.lr = lr}, options, world);
    for (int t = 0; t < steps; ++t) {
      time.sleep(10ms);
      optimizer.zero_grad();
      x.mutable_grad() = a(i) * (x.detach() - c(i));
      optimizer.step();
    }
    ends[static_cast<std::size_t>(i)] = x[0].item<double>();
    nobody_leaves_yet(optimizer);
  });
  return distances(ends);
}

double root_of_squares(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

TEST_P(SchemeBias, OnSkewedDataIsZeroForExactSchemesAndElseFallsWithTheLearningRate) {
  if (in_pairs()) GTEST_SKIP() << "push_pull_test.cpp, virtual_test.cpp: their times are random";
  const std::vector<double> off = run(linear(), kLr, 1500);
  if (info().traits.exact) {
    EXPECT_THAT(off, testing::Each(testing::DoubleNear(0, 1e-5)));
    if (!info().takes_means()) return;
    Options with_means = linear();
    with_means.mean_every = 7;
    EXPECT_THAT(run(with_means, kLr, 1505), testing::Each(testing::DoubleNear(0, 1e-5)));
    return;
  }
  EXPECT_THAT(off, testing::Each(testing::Not(testing::DoubleNear(0, 1e-3))))
      << "it is exact, and its traits do not say so";
  if (!mixes()) return;
  EXPECT_THAT(off, testing::Each(testing::DoubleNear(0, 1)));
  EXPECT_NEAR(root_of_squares(run(linear(), kLr / 2, 3000)) / root_of_squares(off), 0.5, 0.1);
}

// A momentum of the whole step ends with the step: so does that of gasloc.
struct FixedPoint {
  std::string scheme, of;  // whose equation it is
  double lr = 1;           // the share of the learning rate that moves
};

TEST(Bias, IsWhatTheoryPredicts) {
  for (const auto& [scheme, of, share] :
       {FixedPoint{"cta", "cta"}, FixedPoint{"dsgd-ac", "cta"}, FixedPoint{"power-gossip", "cta"},
        FixedPoint{"atc", "atc"}, FixedPoint{"choco", "atc"}, FixedPoint{"quasi-global", "atc"},
        FixedPoint{"decentlam", "atc"}, FixedPoint{"gasloc", "atc", 0.7},
        FixedPoint{"sparse-loco", "atc", 0.7}}) {
    const Options options{.topology = "ring", .scheme = scheme};
    const Graph ring = schedule_of(options, kFour, 1).at(0);
    std::vector<double> x(kFour);
    for (int t = 0; t < 10'000; ++t) {
      std::vector<double> next = of == "cta" ? mixed(x, ring) : x;
      for (int i = 0; i < kFour; ++i) {
        const auto at = static_cast<std::size_t>(i);
        next[at] -= share * kLr * a(i) * (x[at] - c(i));
      }
      x = of == "cta" ? next : mixed(next, ring);
    }
    const std::vector<double> off = run(options, kLr, 1500), predicted = distances(x);
    for (std::size_t i = 0; i < off.size(); ++i)
      EXPECT_NEAR(off[i] / predicted[i], 1, 1e-3) << scheme << ", worker " << i << ": " << predicted[i];
  }
}

// Worker 3 stands still after each 20 steps. The others go on without it, and it jumps to their
// round.
TEST(Bias, OfDiffusionIsZeroThoughAWorkerMissesRounds) {
  for (const char* const scheme : {"exact-diffusion", "d2"}) {
    SCOPED_TRACE(scheme);
    Options options = options_of(scheme_info(scheme));
    options.max_wait = 20ms;
    std::vector<double> ends(kFour);
    std::vector<std::uint64_t> rounds(kFour);
    virtual_flock(kFour, [&](int i, World& world, VirtualTime& time) {
      const Tensor x = parameter({3});
      Optimizer optimizer({x}, SGD{.lr = kLr}, options, world);
      for (int t = 1; time.now().time_since_epoch() < 20s; ++t) {
        time.sleep(i == 3 && t % 20 == 0 ? 210ms : 10ms);
        x.mutable_grad() = a(i) * (x.detach() - c(i));
        optimizer.step();
      }
      ends[static_cast<std::size_t>(i)] = x[0].item<double>();
      rounds[static_cast<std::size_t>(i)] = optimizer.statistics().rounds;
      nobody_leaves_yet(optimizer);
    });
    EXPECT_GT(rounds[0], rounds[3] + 500);
    EXPECT_THAT(distances(ends), testing::Each(testing::DoubleNear(0, 1e-4)));
  }
}

STARLING_EVERY_SCHEME(SchemeBias);

}  // namespace
}  // namespace starling
