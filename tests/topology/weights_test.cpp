#include "starling/topology/weights.h"

#include <gtest/gtest.h>

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
  // A triangle 0 1 2 with a tail 3: degrees 4, 3, 3, 2 with the worker itself.
  const Graph graph = metropolis_hastings(4, {{0, 1}, {0, 2}, {1, 2}, {0, 3}});
  EXPECT_EQ(graph.neighbours[0], (Row{{1, 1.0 / 4}, {2, 1.0 / 4}, {3, 1.0 / 4}}));
  EXPECT_EQ(graph.neighbours[1], (Row{{0, 1.0 / 4}, {2, 1.0 / 3}}));
  EXPECT_EQ(graph.neighbours[3], (Row{{0, 1.0 / 4}}));
  EXPECT_TRUE(graph.symmetric());
}

}  // namespace
}  // namespace starling
