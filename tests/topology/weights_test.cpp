#include "starling/topology/weights.h"

#include <cmath>
#include <numbers>
#include <random>

#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "starling/topology/spectrum.h"
#include "tests/refusal.h"
#include "tests/topology/matrices.h"

namespace starling {
namespace {

using Row = std::vector<Neighbour>;

TEST(Weights, RowsStaySortedByRank) {
  Graph graph(4);
  add_arc(graph, 0, 3, 0.125);
  add_arc(graph, 0, 1, 0.25);
  add_arc(graph, 0, 2, 0.5);
  EXPECT_EQ(graph.neighbours[0], (Row{{1, 0.25}, {2, 0.5}, {3, 0.125}}));
  EXPECT_TRUE(graph.neighbours[1].empty());
}

TEST(Weights, AnEdgeGoesBothWays) {
  Graph graph(3);
  add_edge(graph, 2, 0, 0.25);
  EXPECT_EQ(graph.neighbours[0], (Row{{2, 0.25}}));
  EXPECT_EQ(graph.neighbours[2], (Row{{0, 0.25}}));
}

TEST(Weights, AGroupTakesItsMean) {
  Graph graph(5);
  add_group(graph, {4, 1, 2, 0});
  EXPECT_EQ(graph.neighbours[0], (Row{{1, 0.25}, {2, 0.25}, {4, 0.25}}));
  EXPECT_EQ(graph.neighbours[4], (Row{{0, 0.25}, {1, 0.25}, {2, 0.25}}));
  EXPECT_TRUE(graph.neighbours[3].empty());
  EXPECT_DOUBLE_EQ(graph.self_weight(1), 0.25);
}

TEST(Weights, MetropolisHastingsCountsAWorkerAmongItsNeighbours) {
  // A triangle 0 1 2 with a tail 3: degrees 4, 3, 3, 2, the worker itself included.
  const Graph graph = metropolis_hastings(4, {{0, 1}, {0, 2}, {1, 2}, {0, 3}});
  EXPECT_EQ(graph.neighbours[0], (Row{{1, 1.0 / 4}, {2, 1.0 / 4}, {3, 1.0 / 4}}));
  EXPECT_EQ(graph.neighbours[1], (Row{{0, 1.0 / 4}, {2, 1.0 / 3}}));
  EXPECT_EQ(graph.neighbours[3], (Row{{0, 1.0 / 4}}));
  EXPECT_TRUE(graph.symmetric());
}

double second(const Graph& graph) { return second_singular_value(mixing_matrix(graph)); }

Graph graph_of(const std::string& name, int n) { return make_schedule(name, n).rounds.front(); }

// Known closed forms: Boyd, Diaconis & Xiao 2004, and Boyd, Diaconis, Sun & Xiao 2006 for the path.
TEST(FastestMixing, HasTheClosedForms) {
  for (const int n : {4, 6, 8, 32}) {
    const double c = std::cos(2 * std::numbers::pi / n);
    const Graph ring = fastest_mixing(graph_of("ring", n));
    EXPECT_NEAR(second(ring), (1 + c) / (3 - c), 1e-8);
    EXPECT_NEAR(ring.weight(1, 2), 1 / (3 - c), 1e-6);
  }
  for (const int n : {2, 5, 12}) {
    Graph path(n);
    for (int i = 0; i + 1 < n; ++i) add_edge(path, i, i + 1, 0.1);
    EXPECT_NEAR(second(fastest_mixing(path)), std::cos(std::numbers::pi / n), 1e-8);
    EXPECT_NEAR(second(fastest_mixing(graph_of("complete", n))), 0, 1e-7);
  }
  for (const int k : {2, 3, 5})
    EXPECT_NEAR(second(fastest_mixing(graph_of("hypercube", 1 << k))), (k - 1.0) / (k + 1), 1e-8);
  EXPECT_EQ(fastest_mixing(Graph(1)).workers(), 1);
}

// The problem is convex: if no step helps, nothing is better.
TEST(FastestMixing, NoOtherWeightsAreBetter) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> change(-1, 1);
  for (const std::string name : {"grid", "star", "erdos-renyi", "torus"}) {
    const Graph before = graph_of(name, 16), best = fastest_mixing(before);
    EXPECT_TRUE(best.symmetric());
    EXPECT_TRUE(doubly_stochastic(mixing_matrix(best)));
    EXPECT_LT(second(best), second(before) + 1e-9) << name;
    for (const double size : {1e-4, 1e-2}) {
      for (int tries = 0; tries < 200; ++tries) {
        Graph other(16);
        for (int i = 0; i < 16; ++i) {
          for (const Neighbour& j : before.neighbours[i]) {
            if (i < j.rank)
              add_edge(other, i, j.rank, std::max(0.0, best.weight(i, j.rank) + size * change(random)));
          }
        }
        if (doubly_stochastic(mixing_matrix(other))) {
          EXPECT_GT(second(other), second(best) - 1e-8) << name;
        }
      }
    }
  }
}

TEST(FastestMixing, RefusesWhatFallsApartOrIsTooLarge) {
  Graph two_pairs(4);
  add_edge(two_pairs, 0, 1, 0.5);
  add_edge(two_pairs, 2, 3, 0.5);
  EXPECT_EQ(refusal<UsageError>([&] { fastest_mixing(two_pairs); }),
            "no weights bring all workers together: the graph falls apart");
  EXPECT_EQ(refusal<UsageError>([&] { fastest_mixing(graph_of("ring", 129)); }),
            "the fastest weights are limited to 128 workers and 1000 edges, got 129 and 129");
  EXPECT_EQ(refusal<UsageError>([&] { fastest_mixing(graph_of("complete", 64)); }),
            "the fastest weights are limited to 128 workers and 1000 edges, got 64 and 2016");
}

}  // namespace
}  // namespace starling
