#include "starling/topology/traffic.h"

#include <gmock/gmock.h>

#include "starling/topology/schedules.h"
#include "starling/topology/weights.h"

namespace starling {
namespace {

using testing::DoubleEq;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

TEST(Traffic, EverybodyWhoReceivesIsSentTheModelOnce) {
  EXPECT_THAT(sent(make_schedule("one-peer-ring", 4).rounds[0]), Each(1.0));
  EXPECT_THAT(sent(make_schedule("ring", 5).rounds[0]), Each(2.0));
  EXPECT_THAT(sent(make_schedule("static-exponential", 6).rounds[0]), Each(3.0));
  EXPECT_THAT(sent(make_schedule("star", 4).rounds[0]), ElementsAre(3, 1, 1, 1));
  Graph one_way(3);
  add_arc(one_way, 0, 2, 0.5);  // 2 sends, 0 receives
  EXPECT_THAT(sent(one_way), ElementsAre(0, 0, 1));
}

TEST(Traffic, GroupsThatTakeTheirMeanShareTheWork) {
  EXPECT_THAT(sent(make_schedule("complete", 8).rounds[0]), Each(DoubleEq(2 * 7.0 / 8)));
  const Graph nodes = make_schedule("alternating-exp-ring", 8, 4).rounds[0];
  EXPECT_THAT(averaging_groups(nodes), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(sent(nodes), Each(1.5));
  // A pair beside a group of three.
  Graph mixed(5);
  add_group(mixed, {0, 4});
  add_group(mixed, {1, 2, 3});
  EXPECT_THAT(averaging_groups(mixed), ElementsAre(ElementsAre(1, 2, 3)));
  EXPECT_THAT(sent(mixed), ElementsAre(1, DoubleEq(4.0 / 3), DoubleEq(4.0 / 3), DoubleEq(4.0 / 3), 1));
}

TEST(Traffic, OfANodeCountsWhatLeavesIt) {
  const Graph ring = make_schedule("ring", 8).rounds[0];
  EXPECT_THAT(sent_by_nodes(ring, 1), Each(2.0));
  EXPECT_THAT(sent_by_nodes(ring, 4), ElementsAre(2, 2));  // at both ends
  EXPECT_THAT(sent_by_nodes(ring, 8), ElementsAre(0));
  EXPECT_THAT(sent_by_nodes(ring, 3), ElementsAre(2, 2, 2));  // the last node has two
  const Schedule exp_ring = make_schedule("alternating-exp-ring", 8, 4);
  EXPECT_THAT(sent_by_nodes(exp_ring.rounds[0], 4), Each(0.0));  // inside
  // Both nodes together: each of 8 sends 4 others a shard and the mean of its own, an eighth each.
  EXPECT_THAT(sent_by_nodes(exp_ring.rounds[1], 4), Each(DoubleEq(4 * 4 * 2.0 / 8)));
  EXPECT_THAT(sent_by_nodes(exp_ring.rounds[1], 4, {.block = 0.5}), Each(DoubleEq(4 * 4 * 1.5 / 8)));
  EXPECT_THAT(sent_by_nodes(exp_ring.rounds[1], 4, {.block = 0.25, .groups = false}),
              Each(DoubleEq(4 * 4 / 4.0)));
  for (const std::string name : {"star", "base-3", "complete", "static-exponential", "torus"}) {
    for (const Graph& round : make_schedule(name, 7).rounds) {
      EXPECT_THAT(sent_by_nodes(round, 1), testing::Pointwise(DoubleEq(), sent(round))) << name;
    }
  }
}

TEST(Traffic, WiresMakeItLess) {
  EXPECT_THAT(sent(make_schedule("ring", 5).rounds[0], {.block = 0.25}), Each(0.5));
  const Graph complete = make_schedule("complete", 8).rounds[0];
  EXPECT_THAT(sent(complete, {.block = 0.5}), Each(DoubleEq(1.5 * 7.0 / 8)));
  EXPECT_THAT(sent(complete, {.block = 0.25, .groups = false}), Each(DoubleEq(7.0 / 4)));
}

TEST(Traffic, OtherGraphsAreNoGroups) {
  EXPECT_THAT(averaging_groups(make_schedule("ring", 4).rounds[0]), IsEmpty());  // not complete
  Graph unequal = metropolis_hastings(3, {{0, 1}, {0, 2}, {1, 2}});
  EXPECT_THAT(averaging_groups(unequal), ElementsAre(ElementsAre(0, 1, 2)));
  unequal.neighbours[1][1].weight = 0.25;
  EXPECT_THAT(averaging_groups(unequal), IsEmpty());
  Graph tail(4);  // a triangle whose worker 0 has another neighbour
  for (const auto& [i, j] : Edges{{0, 1}, {0, 2}, {1, 2}, {0, 3}}) add_edge(tail, i, j, 0.25);
  EXPECT_THAT(averaging_groups(tail), IsEmpty());
}

}  // namespace
}  // namespace starling
