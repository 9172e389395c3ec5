// Schedules that use nodes: hierarchical and inner-outer.
#include <set>

#include <gmock/gmock.h>

#include "starling/topology/spectrum.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

TEST(Hierarchical, MeansInsideAndTheScheduleBetweenInTurn) {
  EXPECT_THAT(rounds_of("hierarchical:base-2", 6, 3, 2),
              testing::ElementsAre("(0,1)(2,3)(4,5)", "(0,2)(1,3)", "(0,1)(2,3)(4,5)", "(0,4:2/3)(1,5:2/3)",
                                   "(0,1)(2,3)(4,5)", "(0,2)(1,3)"));
}

TEST(Hierarchical, ExactWhereTheScheduleBetweenTheNodesIs) {
  for (const std::string between : {"base-2", "base-3", "complete", "simple-base-2"}) {
    for (int m = 2; m <= 9; ++m) {
      for (int L : {2, 3, 4}) {
        const Schedule schedule = make_schedule("hierarchical:" + between, m * L, L);
        EXPECT_EQ(rounds_to_average(schedule), 2 * make_schedule(between, m).rounds.size())
            << between << ", " << m << " nodes of " << L;
      }
    }
  }
}

TEST(Hierarchical, ContractsInTwoRoundsAsItsNodesDoInOne) {
  for (int L : {2, 4}) {
    const Schedule nodes = make_schedule("ring", 8), all = make_schedule("hierarchical:ring", 8 * L, L);
    EXPECT_NEAR(second_singular_value(period_product(all)), second_singular_value(period_product(nodes)),
                1e-12);
  }
}

TEST(Hierarchical, OneNodeOrOneWorkerANode) {
  EXPECT_EQ(make_schedule("hierarchical:ring", 5, 5).fingerprint(),
            make_schedule("complete", 5).fingerprint());
  EXPECT_EQ(make_schedule("hierarchical:ring", 5, 1).fingerprint(), make_schedule("ring", 5).fingerprint());
}

TEST(InnerOuter, OneOfEachNodeIsOutsideAtATime) {
  // Two nodes of three: with base-2 the workers outside are a pair, and so are the two inside.
  EXPECT_THAT(rounds_of("inner-outer:base-2", 6, 1, 3),
              testing::ElementsAre("(0,3)(1,2)(4,5)", "(0,2)(1,4)(3,5)", "(0,1)(2,5)(3,4)"));
  for (const auto& [m, L] : std::vector<std::pair<int, int>>{{2, 4}, {5, 3}, {4, 5}, {3, 8}}) {
    const Schedule schedule = make_schedule("inner-outer:base-2", m * L, L);
    for (const Graph& round : schedule.rounds) {
      EXPECT_LE(most_peers(round), 1);
      for (int a = 0; a < m; ++a) {
        int outside = 0;
        for (int i = a * L; i < (a + 1) * L; ++i) {
          for (const Neighbour& j : round.neighbours[i]) outside += j.rank / L != a;
        }
        EXPECT_LE(outside, 1) << m << " nodes of " << L;
      }
    }
  }
}

TEST(InnerOuter, EveryPlaceMeetsWhatTheScheduleBetweenNodesPairs) {
  // Four places and base-2's two rounds over four nodes. With one counter for both, a place would
  // meet one round only.
  std::set<std::pair<int, int>> met, wanted;
  for (const Graph& round : make_schedule("inner-outer:base-2", 16, 4).rounds) {
    for (int i = 0; i < 16; ++i) {
      for (const Neighbour& j : round.neighbours[i]) {
        if (j.rank / 4 != i / 4) met.emplace(i, j.rank);
      }
    }
  }
  for (const Graph& nodes : make_schedule("base-2", 4).rounds) {
    for (int a = 0; a < 4; ++a) {
      for (const Neighbour& b : nodes.neighbours[a]) {
        for (int place = 0; place < 4; ++place) wanted.emplace(a * 4 + place, b.rank * 4 + place);
      }
    }
  }
  EXPECT_EQ(met, wanted);
}

TEST(InnerOuter, ReachesConsensusForAllNodes) {
  for (int m = 1; m <= 6; ++m) {
    for (int L = 1; L <= 6; ++L) {
      for (const std::string name : {"inner-outer:base-2", "inner-outer:one-peer-exponential-directed"}) {
        EXPECT_LT(second_singular_value(period_product(make_schedule(name, m * L, L))), 0.999)
            << name << ", " << m << " nodes of " << L;
      }
    }
  }
}

TEST(InnerOuter, SmallNodes) {
  EXPECT_EQ(make_schedule("inner-outer:ring", 8, 2).fingerprint(),
            make_schedule("hierarchical:ring", 8, 2).fingerprint());
  EXPECT_EQ(make_schedule("inner-outer:base-2", 5, 1).fingerprint(),
            make_schedule("base-2", 5).fingerprint());
  EXPECT_EQ(make_schedule("inner-outer:base-2", 5, 5).fingerprint(),
            make_schedule("base-2", 5).fingerprint());
}

}  // namespace
}  // namespace starling
