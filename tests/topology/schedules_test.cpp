#include "starling/topology/schedules.h"

#include <map>
#include <set>

#include <gmock/gmock.h>

#include "starling/topology/spectrum.h"
#include "tests/refusal.h"
#include "tests/topology/matrices.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

using testing::ElementsAre;

std::string error_of(const std::string& name, int n, int workers_per_node = 1) {
  return refusal<UsageError>([&] { make_schedule(name, n, workers_per_node); });
}

TEST(Schedules, ForEachPlaceIsOneOfNodesManyTimesOver) {
  const Schedule nodes = make_schedule("base-2", 3), all = nodes.for_each_place(4);
  ASSERT_EQ(all.rounds.size(), nodes.rounds.size());
  for (std::size_t r = 0; r < all.rounds.size(); ++r) {
    ASSERT_EQ(all.rounds[r].workers(), 12);
    for (int i = 0; i < 12; ++i) {
      for (int j = 0; j < 12; ++j)
        EXPECT_EQ(all.rounds[r].weight(i, j),
                  i % 4 == j % 4 && i != j ? nodes.rounds[r].weight(i / 4, j / 4) : 0);
    }
  }
}

TEST(Schedules, EveryKnownNameMakesASchedule) {
  std::vector<std::string> names;
  for (const ScheduleInfo& info : known_schedules()) {
    names.push_back(info.name);
    EXPECT_FALSE(info.summary.empty());
    EXPECT_EQ(make_schedule(info.example, 4).name, info.example);
    EXPECT_EQ(make_schedule(info.example, 4).workers(), 4);
  }
  EXPECT_THAT(
      names,
      ElementsAre("complete", "ring", "one-peer-ring", "one-peer-exponential",
                  "one-peer-exponential-directed", "n-peer-exponential-P", "static-exponential", "hypercube",
                  "hyper-hypercube-K", "base-K", "simple-base-K", "alternating-exp-ring",
                  "hierarchical:SCHEDULE", "inner-outer:SCHEDULE", "star", "grid", "torus", "erdos-renyi",
                  "erdos-renyi-SEED", "d-equistatic-M", "u-equistatic-M", "od-equidyn", "od-equidyn-SEED",
                  "ou-equidyn", "ou-equidyn-SEED", "random-matching", "random-matching-SEED"));
}

TEST(Schedules, AWorldOfOneHasOneRoundWithoutNeighbours) {
  for (const ScheduleInfo& info : known_schedules()) {
    const std::string& name = info.example;
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

TEST(Schedules, TheLargestNumberOfPeersIsAllOthers) {
  for (const std::string family : {"n-peer-exponential-", "d-equistatic-", "u-equistatic-", "base-"}) {
    const Schedule schedule = make_schedule(family + "2147483647", 6);
    ASSERT_EQ(schedule.rounds.size(), 1U) << family;
    EXPECT_EQ(schedule.fingerprint(), make_schedule("complete", 6).fingerprint()) << family;
  }
}

TEST(Schedules, StaticExponentialTakesFromAllPowersOfTwo) {
  using Row = std::vector<Neighbour>;
  const Schedule schedule = make_schedule("static-exponential", 6);
  ASSERT_EQ(schedule.rounds.size(), 1u);
  EXPECT_EQ(schedule.rounds[0].neighbours[0], (Row{{1, 0.25}, {2, 0.25}, {4, 0.25}}));
  EXPECT_EQ(schedule.rounds[0].neighbours[5], (Row{{0, 0.25}, {1, 0.25}, {3, 0.25}}));
  EXPECT_FALSE(schedule.rounds[0].symmetric());
  EXPECT_THAT(rounds_of("static-exponential", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("static-exponential", 3, 3), ElementsAre("(0,1:1/3)(0,2:1/3)(1,2:1/3)"));
}

TEST(Schedules, Hypercube) {
  EXPECT_THAT(rounds_of("hypercube", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("hypercube", 8, 4),
              ElementsAre("(0,1:1/4)(0,2:1/4)(0,4:1/4)(1,3:1/4)(1,5:1/4)(2,3:1/4)(2,6:1/4)(3,7:1/4)"
                          "(4,5:1/4)(4,6:1/4)(5,7:1/4)(6,7:1/4)"));
  EXPECT_EQ(error_of("hypercube", 12),
            "schedule hypercube needs a power of two workers, got 12: the nearest are 8 and 16 (base-2 works "
            "for every number)");
}

TEST(Schedules, HyperHypercubeIsBaseWithoutTheOtherWorlds) {
  EXPECT_THAT(rounds_of("hyper-hypercube-3", 6, 3), ElementsAre("(0,1)(2,3)(4,5)",
                                                                "(0,2:1/3)(0,4:1/3)(1,3:1/3)"
                                                                "(1,5:1/3)(2,4:1/3)(3,5:1/3)"));
  EXPECT_EQ(
      error_of("hyper-hypercube-3", 14),
      "schedule hyper-hypercube-3 needs a number of workers without a prime factor above 3, got 14: the "
      "nearest are 12 and 16 (base-3 works for every number)");
  for (int K = 2; K <= 6; ++K) {
    for (int n = 2; n <= 64; ++n) {
      const std::string number = std::to_string(K);
      const auto schedule = schedule_if_any("hyper-hypercube-" + number, n);
      if (!schedule) continue;
      EXPECT_EQ(schedule->fingerprint(), make_schedule("base-" + number, n).fingerprint()) << K << ", " << n;
      EXPECT_EQ(rounds_to_average(*schedule), schedule->rounds.size()) << K << ", " << n;
    }
  }
}

TEST(Schedules, SimpleBaseIsExactAndAsLongAsPublished) {
  // The even n below 31 for which base-2 is shorter.
  const std::map<int, std::size_t> longer = {{6, 5},  {10, 7}, {12, 7}, {14, 7}, {18, 9}, {20, 9},
                                             {22, 9}, {24, 9}, {26, 9}, {28, 9}, {30, 9}};
  for (int n = 2; n <= 33; ++n) {
    for (const std::string K : {"2", "3", "4"}) {
      const Schedule simple = make_schedule("simple-base-" + K, n);
      const std::size_t base = make_schedule("base-" + K, n).rounds.size();
      EXPECT_EQ(rounds_to_average(simple), simple.rounds.size()) << K << ", " << n;
      EXPECT_GE(simple.rounds.size(), base) << K << ", " << n;
      if (K == "2") {
        EXPECT_EQ(simple.rounds.size(), longer.contains(n) ? longer.at(n) : base) << n;
      }
    }
  }
}

TEST(Schedules, Star) {
  EXPECT_THAT(rounds_of("star", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("star", 4, 4), ElementsAre("(0,1:1/4)(0,2:1/4)(0,3:1/4)"));
  EXPECT_DOUBLE_EQ(make_schedule("star", 4).rounds[0].self_weight(3), 0.75);
}

TEST(Schedules, GridIsAsSquareAsPossible) {
  EXPECT_THAT(rounds_of("grid", 2), ElementsAre("(0,1)"));
  EXPECT_THAT(rounds_of("grid", 3, 3), ElementsAre("(0,1:1/3)(1,2:1/3)"));  // a line
  EXPECT_THAT(rounds_of("grid", 6, 12),                                     // 2 x 3
              ElementsAre("(0,1:3/12)(0,3:4/12)(1,2:3/12)(1,4:3/12)(2,5:4/12)(3,4:3/12)(4,5:3/12)"));
}

TEST(Schedules, TorusJoinsTheEndsOfTheGrid) {
  EXPECT_THAT(rounds_of("torus", 4, 3),
              ElementsAre("(0,1:1/3)(0,2:1/3)(1,3:1/3)(2,3:1/3)"));  // the ends are joined already
  EXPECT_THAT(
      rounds_of("torus", 6, 4),  // 2 x 3
      ElementsAre("(0,1:1/4)(0,2:1/4)(0,3:1/4)(1,2:1/4)(1,4:1/4)(2,5:1/4)(3,4:1/4)(3,5:1/4)(4,5:1/4)"));
  for (int n : {2, 5, 7, 13}) EXPECT_EQ(rounds_of("torus", n), rounds_of("ring", n)) << n;
  const Graph twelve = make_schedule("torus", 12).rounds[0];  // 3 x 4
  EXPECT_THAT(twelve.neighbours, testing::Each(testing::SizeIs(4)));
}

TEST(Schedules, RandomMatchingPairsAllButOneAndMeetsEverybody) {
  for (int n : {3, 4, 7, 12}) {
    const Schedule schedule = make_schedule("random-matching", n);
    EXPECT_EQ(schedule.rounds.size(), 1000u);
    std::set<std::pair<int, int>> met;
    std::vector<int> idle(n);
    for (const Graph& round : schedule.rounds) {
      int paired = 0;
      for (int i = 0; i < n; ++i) {
        ASSERT_LE(round.neighbours[i].size(), 1u);
        if (round.neighbours[i].empty()) ++idle[i];
        for (const Neighbour& j : round.neighbours[i]) {
          EXPECT_EQ(j.weight, 0.5);
          met.emplace(i, j.rank);
          ++paired;
        }
      }
      EXPECT_EQ(paired, n - n % 2);
    }
    EXPECT_EQ(met.size(), n * (n - 1));
    // Even odds: each idles in 1000 / n rounds, within five standard deviations.
    for (int count : idle) {
      EXPECT_NEAR(count, n % 2 ? 1000.0 / n : 0, n % 2 ? 5 * std::sqrt(1000.0 / n) : 0);
    }
  }
}

TEST(Schedules, RandomMatchingDependsOnTheSeedAlone) {
  // The same on every machine. These values were recorded once.
  const Schedule schedule = make_schedule("random-matching", 6);
  EXPECT_EQ(edges(schedule.rounds[0]), "(0,4)(1,3)(2,5)");
  EXPECT_EQ(edges(schedule.rounds[999]), "(0,1)(2,4)(3,5)");
  EXPECT_EQ(schedule.fingerprint(), make_schedule("random-matching-0", 6).fingerprint());
  EXPECT_NE(schedule.fingerprint(), make_schedule("random-matching-1", 6).fingerprint());
  for (const std::string name :
       {"random-matching-", "random-matching--1", "random-matching-SEED", "random-matching-99999999999"}) {
    EXPECT_EQ(error_of(name, 4), "schedule '" + name +
                                     "': random-matching-SEED needs a whole number SEED of at "
                                     "least 0, as in random-matching-7");
  }
}

TEST(Schedules, AllAreDoublyStochasticUpTo33Workers) {
  for (const ScheduleInfo& info : known_schedules()) {
    int worlds = 0;
    for (int n = 1; n <= 33; ++n) {
      const auto schedule = schedule_if_any(info.example, n);
      if (!schedule) continue;
      ++worlds;
      for (const Graph& round : schedule->rounds) {
        ASSERT_TRUE(doubly_stochastic(mixing_matrix(round))) << info.example << ", n " << n;
      }
    }
    EXPECT_GE(worlds, 6) << info.example;  // the powers of two at least
  }
}

TEST(Schedules, FingerprintsTellRoundsApart) {
  const std::uint64_t base = make_schedule("base-2", 6).fingerprint();
  EXPECT_EQ(base, make_schedule("base-2", 6).fingerprint());
  EXPECT_NE(base, make_schedule("simple-base-2", 6).fingerprint());
  EXPECT_NE(base, make_schedule("base-2", 5).fingerprint());
  Schedule changed = make_schedule("base-2", 6);
  changed.rounds[1].neighbours[2].front().weight += 1e-12;
  EXPECT_NE(base, changed.fingerprint());
}

TEST(Schedules, NPeerExponentialTakesFromDistancesJTimesPowersOfPPlus1) {
  const Schedule two = make_schedule("n-peer-exponential-2", 9);
  ASSERT_EQ(two.rounds.size(), 2U);
  const double third = 1.0 / 3;
  EXPECT_THAT(two.rounds[0].neighbours[8], ElementsAre(Neighbour{0, third}, Neighbour{1, third}));
  EXPECT_THAT(two.rounds[1].neighbours[8], ElementsAre(Neighbour{2, third}, Neighbour{5, third}));
  EXPECT_EQ(rounds_to_average(two), 2);
  // If the last round has fewer peers, their weights are larger.
  EXPECT_THAT(make_schedule("n-peer-exponential-2", 4).rounds[1].neighbours[0],
              ElementsAre(Neighbour{3, 0.5}));
  EXPECT_EQ(make_schedule("n-peer-exponential-1", 6).rounds.size(),
            make_schedule("one-peer-exponential-directed", 6).rounds.size());
  EXPECT_EQ(make_schedule("n-peer-exponential-1", 6).fingerprint(),
            make_schedule("one-peer-exponential-directed", 6).fingerprint());
}

TEST(Schedules, UnknownNamesListTheKnownOnes) {
  std::string known;
  for (const ScheduleInfo& info : known_schedules()) known += info.name + ", ";
  EXPECT_TRUE(known.starts_with("complete, ring, one-peer-ring, one-peer-exponential, ")) << known;
  EXPECT_EQ(error_of("hexagon", 4),
            "unknown schedule 'hexagon': known are " + known + "and files that end in .toml or .json");
  EXPECT_THAT(error_of("", 4), testing::StartsWith("unknown schedule ''"));
  EXPECT_THAT(error_of("Ring", 4), testing::StartsWith("unknown schedule 'Ring'"));
}

TEST(Schedules, BaseNeedsAWholeNumberOfAtLeastTwo) {
  for (const std::string name : {"base-1", "base-0", "base--2", "base-", "base-x", "base-2x", "base-K",
                                 "base-2.5", "base-99999999999"}) {
    EXPECT_EQ(error_of(name, 4),
              "schedule '" + name + "': base-K needs a whole number K of at least 2, as in base-2");
  }
  // Every worker with every other.
  EXPECT_EQ(make_schedule("base-2147483647", 6).rounds.size(), 1u);
}

TEST(Schedules, TheOthersOfANumberNeedItToo) {
  EXPECT_EQ(
      error_of("simple-base-1", 4),
      "schedule 'simple-base-1': simple-base-K needs a whole number K of at least 2, as in simple-base-2");
  EXPECT_EQ(error_of("hyper-hypercube-x", 4),
            "schedule 'hyper-hypercube-x': hyper-hypercube-K needs a whole number K of at least 2, as in "
            "hyper-hypercube-2");
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

TEST(Schedules, SchedulesOfNodesNeedWholeNodes) {
  EXPECT_EQ(
      error_of("alternating-exp-ring", 10, 4),
      "schedule alternating-exp-ring needs whole nodes of 4 workers each, got 10 workers: the nearest are 8 "
      "and 12 (base-2 works for every number)");
  EXPECT_THAT(error_of("alternating-exp-ring", 3, 4), testing::HasSubstr("got 3 workers: the nearest is 4"));
  EXPECT_THAT(error_of("hierarchical:ring", 10, 4), testing::HasSubstr("the nearest are 8 and 12"));
  EXPECT_THAT(error_of("inner-outer:ring", 10, 4),
              testing::HasSubstr("schedule inner-outer:ring needs whole"));
}

TEST(Schedules, SchedulesOverSchedulesNeedOne) {
  for (const std::string name :
       {"hierarchical:", "hierarchical:hierarchical:ring", "hierarchical:inner-outer:ring"}) {
    EXPECT_EQ(error_of(name, 4),
              "schedule '" + name +
                  "': hierarchical: must be followed by one schedule without a colon, as in "
                  "hierarchical:base-2");
  }
  for (int n : {1, 4}) {
    EXPECT_THAT(error_of("hierarchical:hexagon", n), testing::StartsWith("unknown schedule 'hexagon'"));
    EXPECT_THAT(error_of("inner-outer:base-1", n), testing::StartsWith("schedule 'base-1': "));
    EXPECT_EQ(error_of("hierarchical:no/such.toml", n),
              "no/such.toml: cannot be opened: No such file or directory");
  }
  EXPECT_THAT(error_of("inner-outer:one-peer-ring", 16, 4),
              testing::HasSubstr("an even number of workers, got 3"));
  EXPECT_EQ(
      error_of("inner-outer:random-matching", 48, 12),
      "schedule inner-outer:random-matching would have a period of 12000 rounds for 48 workers, at most "
      "10000 are allowed");
  EXPECT_THAT(error_of("hierarchical", 4), testing::StartsWith("unknown schedule 'hierarchical'"));
}

}  // namespace
}  // namespace starling
