#include "starling/topology/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/topology/schedules.h"
#include "starling/topology/weights.h"

namespace starling {
namespace {

using testing::Each;
using testing::ElementsAre;

TEST(Traffic, EverybodyWhoReceivesIsSentTheModelOnce) {
  EXPECT_THAT(sent(make_schedule("one-peer-ring", 4).rounds[0]), Each(1.0));
  EXPECT_THAT(sent(make_schedule("ring", 5).rounds[0]), Each(2.0));
  EXPECT_THAT(sent(make_schedule("static-exponential", 6).rounds[0]), Each(3.0));
  EXPECT_THAT(sent(make_schedule("complete", 8).rounds[0]), Each(7.0));
  EXPECT_THAT(sent(make_schedule("star", 4).rounds[0]), ElementsAre(3, 1, 1, 1));
  Graph one_way(3);
  add_arc(one_way, 0, 2, 0.5);  // 2 sends, 0 receives
  EXPECT_THAT(sent(one_way), ElementsAre(0, 0, 1));
}

}  // namespace
}  // namespace starling
