#include "starling/topology/graph.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Graph, SelfWeightIsWhatTheOthersLeave) {
  Graph graph(3);
  graph.neighbours[0] = {{1, 0.25}, {2, 0.5}};
  EXPECT_DOUBLE_EQ(graph.self_weight(0), 0.25);
  EXPECT_DOUBLE_EQ(graph.self_weight(1), 1.0);
}

TEST(Graph, SymmetricComparesBothDirections) {
  Graph graph(3);
  EXPECT_TRUE(graph.symmetric());
  graph.neighbours[0] = {{2, 0.25}};
  EXPECT_FALSE(graph.symmetric());
  graph.neighbours[2] = {{0, 0.5}};
  EXPECT_FALSE(graph.symmetric());
  graph.neighbours[2] = {{0, 0.25 + 1e-13}};
  EXPECT_TRUE(graph.symmetric());
}

TEST(Schedule, RoundsRepeatAfterThePeriod) {
  Schedule schedule{"two", {Graph(2), Graph(2)}};
  schedule.rounds[1].neighbours[0] = {{1, 0.5}};
  EXPECT_EQ(&schedule.at(0), &schedule.rounds[0]);
  EXPECT_EQ(&schedule.at(1), &schedule.rounds[1]);
  EXPECT_EQ(&schedule.at(3'000'000'000'000LL), &schedule.rounds[0]);
  EXPECT_EQ(&schedule.at(3'000'000'000'001LL), &schedule.rounds[1]);
}

}  // namespace
}  // namespace starling
