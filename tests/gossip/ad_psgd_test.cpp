// The two sides of AD-PSGD's bipartite graphs.
#include "starling/gossip/ad_psgd.h"

#include <string>

#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "tests/refusal.h"

namespace starling {
namespace {

TEST(AdPsgd, OnlyOneSideAsksAndEveryEdgeIsUsedAsOften) {
  for (const auto& [topology, n] : {std::pair{"ring", 2}, {"ring", 6}, {"hypercube", 8}, {"grid", 9}}) {
    const PairRates all = pair_rates(make_schedule(topology, n), 1.5);
    const PairRates two = bipartite(all);
    double before = 0, after = 0;
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        before += all.of_pair(i, j), after += two.of_pair(i, j);
        EXPECT_EQ(all.of_pair(i, j) > 0, two.of_pair(i, j) > 0);
        EXPECT_FALSE(two.often(i) > 0 && two.often(j) > 0 && all.of_pair(i, j) > 0) << i << " and " << j;
        const bool regular = topology != std::string("grid");
        EXPECT_NEAR(two.of_pair(i, j), all.of_pair(i, j), regular ? 1e-12 : 0.5) << topology;
      }
    }
    EXPECT_EQ(two.often(0), 0);
    EXPECT_NEAR(after, before, 1e-12);  // 1.5 averagings of each worker
  }
}

TEST(AdPsgd, AWorldOfOneHasOneSide) {
  EXPECT_EQ(bipartite(pair_rates(make_schedule("ring", 1), 1)).often(0), 0);
}

TEST(AdPsgd, AGraphWithoutTwoSidesIsRefused) {
  const auto refused = [](const std::string& topology, int n) {
    return refusal([&] { bipartite(pair_rates(make_schedule(topology, n), 1)); });
  };
  EXPECT_EQ(refused("ring", 5),
            "ad-psgd-bipartite: the graph has no two sides: neighbours 2 and 3 would be on the same; allowed "
            "are such as even rings, hypercubes and stars");
  EXPECT_NE(refused("complete", 4), "accepted");
  EXPECT_EQ(refused("star", 5), "accepted");
}

}  // namespace
}  // namespace starling
