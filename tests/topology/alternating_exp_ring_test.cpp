#include <gmock/gmock.h>

#include "starling/topology/spectrum.h"
#include "tests/topology/matrices.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

void expect_exact_after(std::size_t period, int m, int L) {
  SCOPED_TRACE(testing::Message() << m << " nodes of " << L);
  const Schedule schedule = make_schedule("alternating-exp-ring", m * L, L);
  ASSERT_EQ(schedule.rounds.size(), period);
  for (const Graph& round : schedule.rounds) {
    EXPECT_TRUE(round.symmetric());
    EXPECT_TRUE(doubly_stochastic(mixing_matrix(round)));
    EXPECT_LE(most_peers(round), 2 * L - 1);
  }
  EXPECT_TRUE(averaging(period_product(schedule)));
}

TEST(AlternatingExpRing, ExactAfterTwoRoundsForEachDoubling) {
  for (const auto& [log2_m, L] :
       std::vector<std::pair<int, int>>{{1, 1}, {1, 8}, {2, 1}, {2, 4}, {3, 2}, {4, 3}})
    expect_exact_after(2u * log2_m, 1 << log2_m, L);
}

TEST(AlternatingExpRing, ExactForEveryNumberOfNodesAfterTwiceBase2) {
  for (int m = 2; m <= 17; ++m) {
    for (int L : {1, 2, 3, 4}) expect_exact_after(2 * make_schedule("base-2", m).rounds.size(), m, L);
  }
}

TEST(AlternatingExpRing, UnequalPairsOfNodesMixByPlace) {
  // base-2 of three nodes: (0,1), then (0,2) with 2/3, then (0,1).
  EXPECT_THAT(
      rounds_of("alternating-exp-ring", 6, 12, 2),
      testing::ElementsAre("(0,1)(2,3)(4,5)", "(0,1:3/12)(0,2:3/12)(0,3:3/12)(1,2:3/12)(1,3:3/12)(2,3:3/12)",
                           "(0,4:8/12)(1,5:8/12)(2,3)", "(0,1)(4,5)", "(0,1)(2,3)(4,5)",
                           "(0,1:3/12)(0,2:3/12)(0,3:3/12)(1,2:3/12)(1,3:3/12)(2,3:3/12)"));
}

TEST(AlternatingExpRing, TwoNodesAverageInsideThenTogether) {
  EXPECT_THAT(rounds_of("alternating-exp-ring", 4, 4, 2),
              testing::ElementsAre("(0,1)(2,3)", "(0,1:1/4)(0,2:1/4)(0,3:1/4)(1,2:1/4)(1,3:1/4)(2,3:1/4)"));
}

TEST(AlternatingExpRing, HalfOfThePairsLoadTheNetworkInEachRound) {
  EXPECT_THAT(rounds_of("alternating-exp-ring", 4), testing::ElementsAre("(2,3)", "(0,1)", "(1,3)", "(0,2)"));
}

TEST(AlternatingExpRing, OneNodeAveragesInside) {
  EXPECT_THAT(rounds_of("alternating-exp-ring", 3, 3, 3),
              testing::ElementsAre("(0,1:1/3)(0,2:1/3)(1,2:1/3)"));
}

}  // namespace
}  // namespace starling
