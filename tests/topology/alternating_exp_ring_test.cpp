#include <gmock/gmock.h>

#include "starling/topology/schedules.h"
#include "starling/topology/spectrum.h"
#include "tests/topology/matrices.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

std::vector<std::string> rounds_of(int nodes, int L, int denominator = 1) {
  std::vector<std::string> texts;
  for (const Graph& round : make_schedule("alternating-exp-ring", nodes * L, L).rounds) {
    texts.push_back(edges(round, denominator));
  }
  return texts;
}

TEST(AlternatingExpRing, ExactAfterTwoRoundsForEachDoubling) {
  for (const auto& [m, L] :
       std::vector<std::pair<int, int>>{{2, 1}, {2, 8}, {4, 1}, {4, 4}, {8, 2}, {16, 3}}) {
    SCOPED_TRACE(testing::Message() << m << " nodes of " << L);
    const Schedule schedule = make_schedule("alternating-exp-ring", m * L, L);
    int log2_m = 0;
    while (1 << log2_m < m) ++log2_m;
    EXPECT_EQ(schedule.rounds.size(), 2u * log2_m);
    for (const Graph& round : schedule.rounds) {
      EXPECT_TRUE(round.symmetric());
      EXPECT_TRUE(doubly_stochastic(mixing_matrix(round)));
      EXPECT_LE(most_peers(round), 2 * L - 1);
    }
    EXPECT_TRUE(averaging(period_product(schedule)));
  }
}

TEST(AlternatingExpRing, ExactForEveryNumberOfNodesAfterTwiceBase2) {
  for (int m = 2; m <= 17; ++m) {
    for (int L : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << m << " nodes of " << L);
      const Schedule schedule = make_schedule("alternating-exp-ring", m * L, L);
      const std::size_t period = 2 * make_schedule("base-2", m).rounds.size();
      ASSERT_EQ(schedule.rounds.size(), period);
      for (const Graph& round : schedule.rounds) {
        EXPECT_TRUE(round.symmetric());
        EXPECT_TRUE(doubly_stochastic(mixing_matrix(round)));
        EXPECT_LE(most_peers(round), 2 * L - 1);
      }
      EXPECT_TRUE(averaging(period_product(schedule)));
    }
  }
}

TEST(AlternatingExpRing, UnequalPairsOfNodesMixByPlace) {
  // base-2 of three nodes: (0,1), then (0,2) with 2/3, then (0,1).
  EXPECT_THAT(
      rounds_of(3, 2, 12),
      testing::ElementsAre("(0,1)(2,3)(4,5)", "(0,1:3/12)(0,2:3/12)(0,3:3/12)(1,2:3/12)(1,3:3/12)(2,3:3/12)",
                           "(0,4:8/12)(1,5:8/12)(2,3)", "(0,1)(4,5)", "(0,1)(2,3)(4,5)",
                           "(0,1:3/12)(0,2:3/12)(0,3:3/12)(1,2:3/12)(1,3:3/12)(2,3:3/12)"));
}

TEST(AlternatingExpRing, TwoNodesAverageInsideThenTogether) {
  EXPECT_THAT(rounds_of(2, 2, 4),
              testing::ElementsAre("(0,1)(2,3)", "(0,1:1/4)(0,2:1/4)(0,3:1/4)(1,2:1/4)(1,3:1/4)(2,3:1/4)"));
}

TEST(AlternatingExpRing, HalfOfThePairsLoadTheNetworkInEachRound) {
  EXPECT_THAT(rounds_of(4, 1), testing::ElementsAre("(2,3)", "(0,1)", "(1,3)", "(0,2)"));
}

TEST(AlternatingExpRing, OneNodeAveragesInside) {
  EXPECT_THAT(rounds_of(1, 3, 3), testing::ElementsAre("(0,1:1/3)(0,2:1/3)(1,2:1/3)"));
}

}  // namespace
}  // namespace starling
