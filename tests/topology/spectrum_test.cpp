#include "starling/topology/spectrum.h"

#include <cmath>
#include <numbers>

#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "starling/topology/weights.h"

namespace starling {
namespace {

Matrix matrix(int n, std::vector<double> values) {
  Matrix W(n);
  W.values = std::move(values);
  return W;
}

TEST(Spectrum, MixingMatrixHoldsTheSelfWeights) {
  Graph graph(3);
  add_arc(graph, 0, 2, 0.25);
  add_arc(graph, 1, 0, 0.5);
  EXPECT_EQ(mixing_matrix(graph).values, (std::vector<double>{0.75, 0, 0.25, 0.5, 0.5, 0, 0, 0, 1}));
}

TEST(Spectrum, ProductAppliesTheFirstRoundFirst) {
  // Round 0: worker 1 takes half of 0's value. Round 1: worker 2 takes half of 1's. So 2 ends with a quarter
  // of 0's.
  Schedule schedule{"chain", {Graph(3), Graph(3)}};
  add_arc(schedule.rounds[0], 1, 0, 0.5);
  add_arc(schedule.rounds[1], 2, 1, 0.5);
  EXPECT_EQ(period_product(schedule).values, (std::vector<double>{1, 0, 0, 0.5, 0.5, 0, 0.25, 0.25, 0.5}));
}

TEST(Spectrum, DoublyStochasticLooksAtRowsColumnsAndSigns) {
  EXPECT_TRUE(doubly_stochastic(matrix(2, {0.25, 0.75, 0.75, 0.25})));
  EXPECT_FALSE(doubly_stochastic(matrix(2, {0.5, 0.5, 1, 0})));  // columns
  EXPECT_FALSE(doubly_stochastic(matrix(2, {0.5, 1, 0.5, 0})));  // rows
  EXPECT_FALSE(doubly_stochastic(matrix(2, {1.25, -0.25, -0.25, 1.25})));
  EXPECT_FALSE(doubly_stochastic(matrix(1, {1 + 1e-11})));
}

TEST(Spectrum, AveragingMeansEveryEntryIsOneOverN) {
  EXPECT_TRUE(averaging(matrix(2, {0.5, 0.5, 0.5, 0.5})));
  EXPECT_TRUE(averaging(matrix(1, {1})));
  EXPECT_FALSE(averaging(matrix(2, {0.5, 0.5, 0.5 + 1e-11, 0.5})));
  EXPECT_FALSE(averaging(matrix(2, {1, 0, 0, 1})));
}

TEST(Spectrum, SecondSingularValueOfKnownMatrices) {
  EXPECT_NEAR(second_singular_value(matrix(2, {0.75, 0.25, 0.25, 0.75})), 0.5, 1e-14);
  EXPECT_NEAR(second_singular_value(matrix(2, {0.5, 0.5, 0.5, 0.5})), 0.0, 1e-14);
  EXPECT_NEAR(second_singular_value(matrix(2, {1, 0, 0, 1})), 1.0, 1e-14);
  EXPECT_NEAR(second_singular_value(matrix(1, {1})), 0.0, 1e-14);
  // A permutation has singular values 1 only, though its eigenvalues are complex.
  EXPECT_NEAR(second_singular_value(matrix(3, {0, 1, 0, 0, 0, 1, 1, 0, 0})), 1.0, 1e-14);
}

TEST(Spectrum, RingContractsAsPublished) {
  const std::vector<std::pair<int, double>> published = {{8, .8047}, {16, .9493}, {32, .9872}, {64, .9968}};
  for (const auto& [n, value] : published) {
    const double sigma = second_singular_value(mixing_matrix(make_schedule("ring", n).rounds[0]));
    EXPECT_NEAR(sigma, value, 5e-5) << n;
    EXPECT_NEAR(sigma, (1 + 2 * std::cos(2 * std::numbers::pi / n)) / 3, 1e-12) << n;
  }
}

TEST(Spectrum, OnePeerExponentialContractsOnlyAsAPeriod) {
  for (int n : {8, 16, 32, 64}) {
    const Schedule schedule = make_schedule("one-peer-exponential", n);
    for (const Graph& round : schedule.rounds) {
      EXPECT_NEAR(second_singular_value(mixing_matrix(round)), 1.0, 1e-12);  // pairs do not connect everyone
    }
    EXPECT_NEAR(second_singular_value(period_product(schedule)), 0.0, 1e-12);
  }
}

TEST(Spectrum, DirectedExponentialHasTheCirculantsSingularValues) {
  for (int n : {5, 8, 12}) {
    const Schedule schedule = make_schedule("one-peer-exponential-directed", n);
    // The first round is the circulant (1, 1)/2: singular values |1 + e^(2 pi i f / n)| / 2, f = 1 the
    // largest.
    EXPECT_NEAR(second_singular_value(mixing_matrix(schedule.rounds[0])), std::cos(std::numbers::pi / n),
                1e-12);
  }
}

}  // namespace
}  // namespace starling
