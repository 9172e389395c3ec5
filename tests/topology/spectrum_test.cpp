#include "starling/topology/spectrum.h"

#include <cmath>
#include <map>
#include <numbers>

#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "starling/topology/weights.h"
#include "tests/topology/matrices.h"

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
  // Round 0: worker 1 takes half of 0's value. Round 1: worker 2 takes half of 1's. At the end 2
  // has a quarter of 0's.
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
  EXPECT_NEAR(smallest_eigenvalue(matrix(2, {0.25, 0.75, 0.75, 0.25})), -0.5, 1e-14);
  EXPECT_NEAR(smallest_eigenvalue(mixing_matrix(make_schedule("ring", 4).rounds[0])), -1.0 / 3, 1e-14);
  EXPECT_NEAR(second_singular_value(matrix(2, {0.5, 0.5, 0.5, 0.5})), 0.0, 1e-14);
  EXPECT_NEAR(second_singular_value(matrix(2, {1, 0, 0, 1})), 1.0, 1e-14);
  EXPECT_NEAR(second_singular_value(matrix(1, {1})), 0.0, 1e-14);
  // A permutation has singular values 1 only, though its eigenvalues are complex.
  EXPECT_NEAR(second_singular_value(matrix(3, {0, 1, 0, 0, 0, 1, 1, 0, 0})), 1.0, 1e-14);
}

TEST(Spectrum, StaticGraphsContractAsPublished) {
  const std::vector<int> workers = {8, 16, 32, 64};
  const std::map<std::string, std::vector<double>> published = {
      {"ring", {.8047, .9493, .9872, .9968}},         {"grid", {.8536, .8686, .9658, .9677}},
      {"torus", {.5000, .6000, .8828, .8828}},        {"hypercube", {.5000, .6000, .6667, .7143}},
      {"static-exponential", {.5, .6, .6667, .7143}}, {"star", {.8750, .9375, .9688, .9844}}};
  for (const auto& [name, values] : published) {
    for (std::size_t k = 0; k < workers.size(); ++k) {
      const Schedule schedule = make_schedule(name, workers[k]);
      ASSERT_EQ(schedule.rounds.size(), 1u) << name;
      EXPECT_NEAR(second_singular_value(mixing_matrix(schedule.rounds[0])), values[k], 5.001e-5)
          << name << ", n " << workers[k];
    }
  }
}

TEST(Spectrum, StaticGraphsContractAsTheirFormulas) {
  const auto sigma = [](const std::string& name, int n) {
    return second_singular_value(mixing_matrix(make_schedule(name, n).rounds[0]));
  };
  for (int r = 1; r <= 6; ++r) {
    const int n = 1 << r;
    EXPECT_NEAR(sigma("hypercube", n), 1 - 2.0 / (r + 1), 1e-12) << n;
    EXPECT_NEAR(sigma("static-exponential", n), 1 - 2.0 / (r + 1), 1e-12) << n;
  }
  for (int n : {4, 5, 8, 31}) {
    EXPECT_NEAR(sigma("ring", n), (1 + 2 * std::cos(2 * std::numbers::pi / n)) / 3, 1e-12) << n;
    EXPECT_NEAR(sigma("star", n), 1 - 1.0 / n, 1e-12) << n;
  }
}

TEST(Spectrum, RoundsToTheExactAverage) {
  EXPECT_EQ(rounds_to_average(make_schedule("complete", 5)), 1);
  EXPECT_EQ(rounds_to_average(make_schedule("base-2", 5)), 5);
  EXPECT_EQ(rounds_to_average(make_schedule("one-peer-exponential", 16)), 4);
  EXPECT_EQ(rounds_to_average(make_schedule("base-2", 1)), 0);
  EXPECT_EQ(rounds_to_average(make_schedule("ring", 5)), std::nullopt);
  EXPECT_EQ(rounds_to_average(make_schedule("one-peer-exponential-directed", 5)), std::nullopt);
  // Exact before the end of the period: two pairings of four workers.
  Schedule early = make_schedule("base-2", 4);
  early.rounds.insert(early.rounds.end(), 3, Graph(4));
  EXPECT_EQ(rounds_to_average(early), 2);
  // 1000 random matchings end below rounding, but only by shrinking.
  const Schedule random = make_schedule("random-matching", 7);
  EXPECT_TRUE(averaging(period_product(random)));
  EXPECT_EQ(rounds_to_average(random), std::nullopt);
}

TEST(Spectrum, RoundsToConsensusOfWhatIsExact) {
  EXPECT_EQ(rounds_to_consensus(make_schedule("complete", 5))->rounds, 1);
  EXPECT_EQ(rounds_to_consensus(make_schedule("base-2", 11))->rounds, 7);
  EXPECT_EQ(rounds_to_consensus(make_schedule("base-2", 1))->rounds, 0);
  EXPECT_FALSE(rounds_to_consensus(make_schedule("base-2", 11))->estimated);
}

TEST(Spectrum, RoundsToConsensusOfARingFollowFromItsEigenvalues) {
  for (const auto& [n, counted] : {std::pair{8, true}, {16, true}, {100, false}}) {
    const auto distance = [&, n = n](double rounds) {
      double squares = 0;
      for (int f = 1; f < n; ++f) {
        squares += std::pow(std::abs((1 + 2 * std::cos(2 * std::numbers::pi * f / n)) / 3), 2 * rounds);
      }
      return std::sqrt(squares / (n - 1));
    };
    const Approach approach = *rounds_to_consensus(make_schedule("ring", n));
    EXPECT_EQ(approach.estimated, !counted) << n;
    // An estimate may differ by a hundredth.
    const double less = counted ? approach.rounds - 1 : 0.99 * approach.rounds;
    const double more = counted ? approach.rounds : 1.01 * approach.rounds;
    EXPECT_GT(distance(less), 1e-6) << n;
    EXPECT_LE(distance(more), 1e-6) << n;
  }
}

TEST(Spectrum, NoConsensusWithoutLinks) {
  Schedule disconnected{"disconnected", {Graph(4)}};
  add_edge(disconnected.rounds[0], 0, 1, 0.5);
  add_edge(disconnected.rounds[0], 2, 3, 0.5);
  EXPECT_FALSE(rounds_to_consensus(disconnected));
}

TEST(Spectrum, WhatFallsApartHasTheValueOne) {
  // The decomposition's own answer is 1 only to rounding.
  EXPECT_EQ(second_singular_value(mixing_matrix(make_schedule("one-peer-ring", 6).rounds[0])), 1.0);
  EXPECT_EQ(second_singular_value(matrix(3, {0, 1, 0, 0, 0, 1, 1, 0, 0})), 1.0);
  EXPECT_LT(second_singular_value(mixing_matrix(make_schedule("star", 6).rounds[0])), 0.84);
  // Connected only by two rounds together: each of (0,1)(2,3) and (1,2) falls apart, their product
  // does not.
  Schedule chain{"chain", {Graph(4), Graph(4)}};
  add_edge(chain.rounds[0], 0, 1, 0.5);
  add_edge(chain.rounds[0], 2, 3, 0.5);
  add_edge(chain.rounds[1], 1, 2, 0.5);
  EXPECT_EQ(second_singular_value(mixing_matrix(chain.rounds[1])), 1.0);
  EXPECT_NEAR(second_singular_value(period_product(chain)), std::sqrt(0.5), 1e-12);
}

TEST(Spectrum, OnePeerExponentialContractsOnlyAsAPeriod) {
  for (int n : {8, 16, 32, 64}) {
    const Schedule schedule = make_schedule("one-peer-exponential", n);
    for (const Graph& round : schedule.rounds) {
      // Pairs do not connect all workers.
      EXPECT_NEAR(second_singular_value(mixing_matrix(round)), 1.0, 1e-12);
    }
    EXPECT_NEAR(second_singular_value(period_product(schedule)), 0.0, 1e-12);
  }
}

TEST(Spectrum, DirectedExponentialHasTheCirculantsSingularValues) {
  for (int n : {5, 8, 12}) {
    const Schedule schedule = make_schedule("one-peer-exponential-directed", n);
    // The first round is the circulant (1, 1)/2: singular values |1 + e^(2 pi i f / n)| / 2, f = 1
    // the largest.
    EXPECT_NEAR(second_singular_value(mixing_matrix(schedule.rounds[0])), std::cos(std::numbers::pi / n),
                1e-12);
  }
}

}  // namespace
}  // namespace starling
