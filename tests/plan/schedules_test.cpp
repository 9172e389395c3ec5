#include "starling/plan/schedules.h"

#include <gmock/gmock.h>

namespace starling {
namespace {

std::vector<int> hosts(int n, int per_host) {
  std::vector<int> host_of;
  for (int i = 0; i < n; ++i) host_of.push_back(i / per_host);
  return host_of;
}

std::vector<int> peers_of(int n, int per_host) {
  std::vector<int> all;
  for (const Exchanges& exchanges : planned_exchanges(hosts(n, per_host), per_host)) {
    all.push_back(exchanges.peers);
    EXPECT_EQ(exchanges.graph.workers(), n);
  }
  return all;
}

// Two workers have only one graph; in alternating-exp-ring's second round they have no neighbours.
TEST(PlannedSchedules, AreNoTwoOfTheSameRounds) {
  EXPECT_THAT(planned_schedules(2, 1), testing::ElementsAre("base-2", "alternating-exp-ring"));
  EXPECT_THAT(planned_schedules(4, 1),
              testing::ElementsAre("base-2", "alternating-exp-ring", "ring", "complete"));
  EXPECT_THAT(planned_schedules(6, 1), testing::IsSupersetOf({"base-2", "base-3", "ring", "complete"}));
  EXPECT_THAT(planned_schedules(8, 2), testing::IsSupersetOf({"base-2", "hierarchical:base-2", "complete"}));
}

// A worker builds these by the number of workers on its own host.
TEST(PlannedSchedules, OfUnlikeHostsNoneThatDependsOnThem) {
  EXPECT_TRUE(hosts_are_alike({0, 0, 1, 1}));
  EXPECT_FALSE(hosts_are_alike({0, 0, 1, 2}));
  EXPECT_THAT(planned_schedules(4, 2, true), testing::Contains("alternating-exp-ring"));
  const auto names = planned_schedules(4, 2, false);
  EXPECT_THAT(names, testing::IsSupersetOf({"base-2", "ring", "complete"}));
  EXPECT_THAT(names, testing::Not(testing::Contains("alternating-exp-ring")));
}

TEST(PlannedSchedules, ExchangesAreAskedForOnce) {
  EXPECT_THAT(peers_of(8, 1), testing::ElementsAre(1, 2, 7));     // pairs, the ring, all
  EXPECT_THAT(peers_of(8, 2), testing::ElementsAre(1, 2, 3, 7));  // and pairs of nodes
  EXPECT_THAT(peers_of(4, 4), testing::IsEmpty());
  EXPECT_THAT(peers_of(1, 1), testing::IsEmpty());
}

// One of base-2's rounds for 4 workers on 2 hosts stays inside.
TEST(PlannedSchedules, TheRoundThatIsMostBetweenHosts) {
  int pairs = 0;
  for (const Exchanges& exchanges : planned_exchanges(hosts(4, 2), 2)) {
    if (exchanges.peers != 1) continue;
    ++pairs;
    for (int i = 0; i < 4; ++i) EXPECT_NE(exchanges.graph.neighbours[i].at(0).rank / 2, i / 2);
  }
  EXPECT_EQ(pairs, 1);
}

}  // namespace
}  // namespace starling
