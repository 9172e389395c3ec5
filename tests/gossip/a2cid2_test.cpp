// The constants of A2CiD2, against the table of the reference implementation and closed forms; its
// continuous momentum.
#include "starling/gossip/a2cid2.h"

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "tests/refusal.h"

namespace starling {
namespace {

A2cid2 of(const std::string& topology, int n, double rate = 1) {
  return a2cid2_of(pair_rates(make_schedule(topology, n), rate));
}

struct Row {
  int n;
  double chi1, chi2, eta, alpha_tilde;
};

void expect_row(const A2cid2& constants, const Row& row) {
  EXPECT_NEAR(constants.chi1, row.chi1, 6e-5) << row.n;
  EXPECT_NEAR(constants.chi2, row.chi2, 6e-5) << row.n;
  EXPECT_NEAR(constants.eta, row.eta, 6e-5) << row.n;
  EXPECT_NEAR(constants.alpha_tilde, row.alpha_tilde, 6e-5) << row.n;
}

TEST(A2cid2, RingsAndExponentialGraphsHaveThePapersConstants) {
  for (const Row& row : {Row{4, 1.0000, .7500, .5774, .5774}, Row{8, 3.4142, .8750, .2893, .9877},
                         Row{16, 13.1371, .9375, .1425, 1.8717}, Row{32, 52.0434, .9688, .0704, 3.6648},
                         Row{64, 207.6725, .9844, .0350, 7.2624}})
    expect_row(of("ring", row.n), row);
  for (const Row& row : {Row{4, 1.0000, .8333, .5477, .5477}, Row{8, 1.5000, .9637, .4159, .6238},
                         Row{16, 2.0000, 1.0097, .3519, .7037}, Row{32, 2.5000, 1.0229, .3127, .7817},
                         Row{64, 3.0000, 1.0241, .2853, .8558}})
    expect_row(of("static-exponential", row.n), row);
}

TEST(A2cid2, ClosedFormsOfRingAndCompleteAtAnyRate) {
  for (const int n : {3, 5, 12, 40}) {
    for (const double rate : {0.5, 1.0, 2.0}) {
      const A2cid2 ring = of("ring", n, rate);
      EXPECT_NEAR(ring.chi1 * rate * (1 - std::cos(2 * std::numbers::pi / n)), 1, 1e-9);
      EXPECT_NEAR(ring.chi2, (n - 1) / (n * rate), 1e-9);
      const A2cid2 complete = of("complete", n, rate);
      EXPECT_NEAR(complete.chi1, (n - 1) / (n * rate), 1e-9);
      EXPECT_NEAR(complete.chi2, complete.chi1, 1e-9);
      EXPECT_NEAR(complete.alpha_tilde, 0.5, 1e-9);  // nothing to gain
      EXPECT_NEAR(of("ring", n, 1).eta * rate, ring.eta, 1e-9);
      EXPECT_NEAR(of("ring", n, 1).alpha_tilde, ring.alpha_tilde, 1e-9);
    }
  }
}

TEST(A2cid2, AWorldOfOneHasNothingToAverage) {
  const A2cid2 alone = of("ring", 1);
  EXPECT_EQ(alone.eta, 0);
  EXPECT_TRUE(pair_rates(make_schedule("ring", 1), 1).asks.front().empty());
}

TEST(A2cid2, AGraphThatFallsApartIsRefused) {
  Schedule pairs{"pairs", {Graph(4)}};
  for (const auto& [i, j] : {std::pair{0, 1}, {1, 0}, {2, 3}, {3, 2}})
    pairs.rounds[0].neighbours[static_cast<std::size_t>(i)] = {{j, 0.5}};
  EXPECT_EQ(refusal<UsageError>([&] { a2cid2_of(pair_rates(pairs, 1)); }),
            "a2cid2: the graph has no path between workers 0 and 2");
}

TEST(A2cid2, ASchedulesEdgesAreThoseOfAllItsRounds) {
  const PairRates rates = pair_rates(make_schedule("base-2", 4), 1);  // (0 1)(2 3), then (0 2)(1 3)
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) EXPECT_DOUBLE_EQ(rates.of_pair(i, j), i == j || i + j == 3 ? 0 : 0.5);
  }
}

// dx = eta (x~ - x) dt, dx~ = eta (x - x~) dt in many small steps.
TEST(A2cid2, MomentumSolvesItsEquation) {
  std::vector<double> x{1, -2, 3}, x_tilde{0, 5, 3};
  std::vector<double> a = x, b = x_tilde;
  const double eta = 0.7, tau = 1.3;
  constexpr int kSteps = 200000;
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double towards = eta * (b[i] - a[i]) * tau / kSteps;
      a[i] += towards, b[i] -= towards;
    }
  }
  mix_momentum(std::span(x), std::span(x_tilde), eta * tau);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(x[i], a[i], 1e-4);
    EXPECT_NEAR(x_tilde[i], b[i], 1e-4);
  }
}

TEST(A2cid2, MomentumKeepsTheSum) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  std::vector<double> x(1000), x_tilde(1000);
  std::vector<float> xf(1000), xf_tilde(1000);
  for (std::size_t i = 0; i < x.size(); ++i) {
    xf[i] = static_cast<float>(x[i] = normal(random));
    xf_tilde[i] = static_cast<float>(x_tilde[i] = normal(random));
  }
  const auto x0 = x, x0_tilde = x_tilde;
  for (int k = 0; k < 100; ++k) {
    mix_momentum(std::span(x), std::span(x_tilde), 0.03);
    mix_momentum(std::span(xf), std::span(xf_tilde), 0.03);
  }
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(x[i] + x_tilde[i], x0[i] + x0_tilde[i], 1e-12);
    EXPECT_NEAR(xf[i] + xf_tilde[i], static_cast<float>(x0[i]) + static_cast<float>(x0_tilde[i]), 3e-6);
  }
  const auto before = x;
  mix_momentum(std::span(x), std::span(x_tilde), 0);
  EXPECT_EQ(x, before);
}

}  // namespace
}  // namespace starling
