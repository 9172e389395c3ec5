#include "starling/topology/schedules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/core/error.h"
#include "starling/topology/spectrum.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

using testing::ElementsAre;

std::vector<std::string> rounds_of(const std::string& name, int n, int denominator = 1) {
  std::vector<std::string> texts;
  for (const Graph& round : make_schedule(name, n).rounds) texts.push_back(edges(round, denominator));
  return texts;
}

std::string error_of(const std::string& name, int n, int workers_per_node = 1) {
  try {
    make_schedule(name, n, workers_per_node);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Schedules, EveryKnownNameMakesASchedule) {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : known_schedules()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.summary.empty());
    const std::string name = info.name == "base-K" ? "base-2" : info.name;
    EXPECT_EQ(make_schedule(name, 4).name, name);
    EXPECT_EQ(make_schedule(name, 4).workers(), 4);
  }
  EXPECT_THAT(names, ElementsAre("complete", "ring", "one-peer-ring", "one-peer-exponential",
                                 "one-peer-exponential-directed", "base-K", "alternating-exp-ring"));
}

TEST(Schedules, AWorldOfOneHasOneRoundWithoutNeighbours) {
  for (const ScheduleInfo& info : known_schedules()) {
    const std::string name = info.name == "base-K" ? "base-3" : info.name;
    for (int workers_per_node : {1, 8}) {
      const Schedule schedule = make_schedule(name, 1, workers_per_node);
      ASSERT_EQ(schedule.rounds.size(), 1u) << name;
      ASSERT_EQ(schedule.workers(), 1) << name;
      EXPECT_TRUE(schedule.rounds[0].neighbours[0].empty()) << name;
    }
  }
}

TEST(Schedules, Complete) {
  EXPECT_THAT(rounds_of("complete", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("complete", 4, 4),
              ElementsAre("(0,1:1/4)(0,2:1/4)(0,3:1/4)(1,2:1/4)(1,3:1/4)(2,3:1/4)"));
}

TEST(Schedules, Ring) {
  EXPECT_THAT(rounds_of("ring", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("ring", 3, 3), ElementsAre("(0,1:1/3)(0,2:1/3)(1,2:1/3)"));
  EXPECT_THAT(rounds_of("ring", 5, 3), ElementsAre("(0,1:1/3)(0,4:1/3)(1,2:1/3)(2,3:1/3)(3,4:1/3)"));
}

TEST(Schedules, OnePeerRing) {
  EXPECT_THAT(rounds_of("one-peer-ring", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("one-peer-ring", 4), ElementsAre("(0,1)(2,3)", "(0,3)(1,2)"));
  EXPECT_THAT(rounds_of("one-peer-ring", 6), ElementsAre("(0,1)(2,3)(4,5)", "(0,5)(1,2)(3,4)"));
}

TEST(Schedules, OnePeerExponential) {
  EXPECT_THAT(rounds_of("one-peer-exponential", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("one-peer-exponential", 8),
              ElementsAre("(0,1)(2,3)(4,5)(6,7)", "(0,2)(1,3)(4,6)(5,7)", "(0,4)(1,5)(2,6)(3,7)"));
}

TEST(Schedules, OnePeerExponentialDirectedIsExactForPowersOfTwoOnly) {
  using Row = std::vector<Neighbour>;
  const Schedule schedule = make_schedule("one-peer-exponential-directed", 5);
  ASSERT_EQ(schedule.rounds.size(), 3u);
  EXPECT_EQ(schedule.rounds[0].neighbours[4], (Row{{0, 0.5}}));
  EXPECT_EQ(schedule.rounds[1].neighbours[4], (Row{{1, 0.5}}));
  EXPECT_EQ(schedule.rounds[2].neighbours[4], (Row{{3, 0.5}}));
  EXPECT_FALSE(schedule.rounds[0].symmetric());
  for (int n = 2; n <= 32; ++n) {
    const bool power_of_two = (n & (n - 1)) == 0;
    EXPECT_EQ(averaging(period_product(make_schedule("one-peer-exponential-directed", n))), power_of_two)
        << n;
  }
}

TEST(Schedules, UnknownNamesListTheKnownOnes) {
  EXPECT_EQ(error_of("hexagon", 4),
            "unknown schedule 'hexagon': known are complete, ring, one-peer-ring, one-peer-exponential, "
            "one-peer-exponential-directed, base-K, alternating-exp-ring");
  EXPECT_THAT(error_of("", 4), testing::StartsWith("unknown schedule ''"));
  EXPECT_THAT(error_of("Ring", 4), testing::StartsWith("unknown schedule 'Ring'"));
}

TEST(Schedules, BaseNeedsAWholeNumberOfAtLeastTwo) {
  for (const std::string name : {"base-1", "base-0", "base--2", "base-", "base-x", "base-2x", "base-K",
                                 "base-2.5", "base-99999999999"}) {
    EXPECT_EQ(error_of(name, 4),
              "schedule '" + name + "': base-K needs a whole number K of at least 2, as in base-2");
  }
  EXPECT_EQ(make_schedule("base-2147483647", 6).rounds.size(), 1u);  // everyone with everyone
}

TEST(Schedules, AtLeastOneWorker) {
  EXPECT_EQ(error_of("ring", 0), "schedule ring needs at least 1 worker, got 0");
  EXPECT_EQ(error_of("base-2", -3), "schedule base-2 needs at least 1 worker, got -3");
  EXPECT_EQ(error_of("alternating-exp-ring", 4, 0),
            "schedule alternating-exp-ring needs at least 1 worker per node, got 0");
}

TEST(Schedules, OddWorldsNameTheNearestEvenOnes) {
  EXPECT_EQ(error_of("one-peer-ring", 5),
            "schedule one-peer-ring needs an even number of workers, got 5: the nearest are 4 and 6 "
            "(base-2 works for every number)");
}

TEST(Schedules, OtherWorldsNameTheNearestPowersOfTwo) {
  EXPECT_EQ(error_of("one-peer-exponential", 6),
            "schedule one-peer-exponential needs a power of two workers, got 6: the nearest are 4 and 8 "
            "(base-2 works for every number)");
  EXPECT_THAT(error_of("one-peer-exponential", 3), testing::HasSubstr("the nearest are 2 and 4"));
  EXPECT_THAT(error_of("one-peer-exponential", 1000), testing::HasSubstr("the nearest are 512 and 1024"));
}

TEST(Schedules, AlternatingExpRingCountsNodes) {
  EXPECT_EQ(error_of("alternating-exp-ring", 12, 4),
            "schedule alternating-exp-ring needs a power of two nodes of 4 workers each, got 12 workers: "
            "the nearest are 8 and 16 (base-2 works for every number)");
  EXPECT_THAT(error_of("alternating-exp-ring", 10, 4), testing::HasSubstr("the nearest are 8 and 16"));
  EXPECT_THAT(error_of("alternating-exp-ring", 3, 4), testing::HasSubstr("got 3 workers: the nearest is 4"));
  EXPECT_THAT(error_of("alternating-exp-ring", 6), testing::HasSubstr("nodes of 1 worker each"));
}

}  // namespace
}  // namespace starling
