// Base-(k+1) against the published construction: lengths, worked examples, and the exact mean after
// a period.
#include <gmock/gmock.h>

#include "starling/topology/families.h"
#include "starling/topology/spectrum.h"
#include "tests/topology/matrices.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

using testing::ElementsAre;

TEST(Base, LengthsForOneToThreePeers) {
  const std::vector<std::vector<std::size_t>> lengths = {
      {1, 3, 2, 5, 4, 5, 3, 7, 6, 7, 5, 7, 6, 7, 4, 9, 8, 9, 7, 9, 8, 9, 6, 9, 8, 9, 7, 9, 8, 9, 5, 11},
      {1, 1, 2, 3, 2, 4, 3, 2, 4, 5, 3, 5, 5, 4, 4, 5, 3, 6, 5, 5, 6, 6, 4, 6, 6, 3, 6, 7, 5, 7, 5, 6},
      {1, 1, 1, 3, 2, 3, 2, 2, 4, 4, 2, 4, 4, 4, 2, 5, 3, 5, 4, 4, 5, 5, 3, 5, 5, 3, 4, 5, 5, 5, 3, 5}};
  for (const int k : {1, 2, 3}) {
    for (int n = 2; n <= 33; ++n) {
      const auto name = "base-" + std::to_string(k + 1);
      EXPECT_EQ(make_schedule(name, n).rounds.size(), lengths[k - 1][n - 2]) << name << ", n " << n;
    }
  }
}

TEST(Base, FiveWorkersRoundByRound) {
  EXPECT_THAT(rounds_of("base-2", 5, 5),
              ElementsAre("(0,1)(2,3)", "(0,2)(1,3)", "(0,4:4/5)(1,2)", "(0,1)(2,3)", "(0,2)(1,3)"));
  for (const int i : {0, 4}) EXPECT_NEAR(base(5, 1)[2].self_weight(i), 1.0 / 5, 1e-15);
}

TEST(Base, SevenWorkersRoundByRound) {
  EXPECT_THAT(rounds_of("base-2", 7, 21),
              ElementsAre("(0,1)(2,3)(4,5)", "(0,2)(1,3)(4,5)", "(0,4:12/21)(1,5:12/21)(2,6:12/21)",
                          "(0,1)(2,3)(4,6:14/21)", "(0,2)(1,3)(4,5)"));
}

// 9 + 2 with at most two peers. The seven of the nine that nobody takes average among themselves.
TEST(Base, ElevenWorkersRoundByRound) {
  const Rounds rounds = simple_base(11, 2);
  ASSERT_EQ(rounds.size(), 5u);
  EXPECT_EQ(edges(rounds[2], 33),
            "(0,9:27/33)(1,10:27/33)(2,3:11/33)(2,4:11/33)(3,4:11/33)(5,6:11/33)(5,7:11/33)(6,7:11/33)");
}

TEST(Base, SixWorkersAreTwoGroupsOfThreeThenPairsAcross) {
  EXPECT_THAT(rounds_of("base-2", 6, 3),
              ElementsAre("(0,1)(3,4)", "(0,2:2/3)(3,5:2/3)", "(0,1)(3,4)", "(0,3)(1,4)(2,5)"));
}

TEST(Base, APowerOfTwoIsTheHypercube) {
  for (int n : {2, 4, 8, 16, 32}) {
    const Rounds rounds = base(n, 1);
    const Schedule cube = make_schedule("one-peer-exponential", n);
    ASSERT_EQ(rounds.size(), cube.rounds.size());
    for (size_t r = 0; r < rounds.size(); ++r) EXPECT_EQ(rounds[r].neighbours, cube.rounds[r].neighbours);
  }
}

TEST(Base, EveryPeriodIsTheExactMeanWithinThePeers) {
  for (int k = 1; k <= 5; ++k) {
    for (int n = 2; n <= 33; ++n) {
      for (const Rounds& rounds : {base(n, k), simple_base(n, k)}) {
        SCOPED_TRACE(testing::Message() << "n " << n << ", k " << k << ", " << rounds.size() << " rounds");
        for (const Graph& round : rounds) {
          EXPECT_TRUE(doubly_stochastic(mixing_matrix(round)));
          EXPECT_TRUE(round.symmetric());
          EXPECT_LE(most_peers(round), k);
        }
        EXPECT_TRUE(averaging(period_product({"base", rounds})));
      }
    }
  }
}

TEST(HyperHypercube, TakesTheFewestFactors) {
  EXPECT_EQ(hyper_hypercube(16, 3)->size(), 2u);  // 4 4
  EXPECT_EQ(hyper_hypercube(12, 3)->size(), 2u);  // 3 4
  EXPECT_EQ(hyper_hypercube(1, 3)->size(), 0u);
  EXPECT_FALSE(hyper_hypercube(10, 3).has_value());
  EXPECT_THAT((*hyper_hypercube(6, 2))[0],
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  EXPECT_THAT((*hyper_hypercube(6, 2))[1], ElementsAre(ElementsAre(0, 2, 4), ElementsAre(1, 3, 5)));
}

}  // namespace
}  // namespace starling
