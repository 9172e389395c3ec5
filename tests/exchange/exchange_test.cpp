// Whole workers over the local transport: what an exchange computes, its slack, averages between
// steps, and restarts. The calls of several workers come from one thread wherever the protocol
// promises that none of them waits for the other.
#include "starling/exchange/exchange.h"

#include <algorithm>
#include <array>
#include <atomic>

#include <gmock/gmock.h>

#include "tests/exchange/flock.h"
#include "tests/mixed.h"
#include "tests/refusal.h"
#include "tests/sanitized.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

TEST(Exchange, OnePeriodOfBase2IsTheExactAverage) {
  for (int n : {1, 2, 3, 4, 5, 7}) {
    Flock flock("base-2", n);
    const auto period = make_schedule("base-2", n).rounds.size();
    const double mean = flock.sum() / n;
    flock.everyone([&](Worker& w) {
      for (std::size_t k = 0; k < period; ++k) w.step();
    });
    for (int i = 0; i < n; ++i) EXPECT_NEAR(flock[i].sum(), mean, 1e-2) << "n " << n;
    EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
  }
}

// A log may take a lock, under which its owner asks the exchange at other times.
TEST(Exchange, HoldsNoLockWhileItLogs) {
  LocalHub hub(2, {.meet = milliseconds(10)});
  Exchange* asked = nullptr;
  std::atomic<int> said = 0;
  const Log log = [&](Level, const std::string&) { asked->round(), ++said; };
  Exchange exchange(hub.endpoint(0), make_schedule("ring", 2), {4},
                    {.patience = {.meet = milliseconds(10)}, .log = log, .needs_all = false});
  asked = &exchange;
  exchange.meet();  // nobody comes
  const int before = said;
  EXPECT_GE(before, 1);
  exchange.outgoing(0);
  exchange.start(0, /*finite=*/false);
  EXPECT_GT(said, before);
}

TEST(Exchange, MixingIsTheMatrixProduct) {
  // x(t+1) = W x(t) in fp64, element 0 of block 0.
  for (const char* name : {"ring", "base-3", "complete", "one-peer-exponential", "alternating-exp-ring"}) {
    const int n = 4;
    const Schedule schedule = make_schedule(name, n);
    Flock flock(name, n);
    std::vector<double> x;
    for (int i = 0; i < n; ++i) x.push_back(flock[i].x[0][0]);
    for (int t = 0; t < 6; ++t) {
      flock.everyone([](Worker& w) { w.step(); });
      x = mixed(x, schedule.at(t));
      for (int i = 0; i < n; ++i) EXPECT_NEAR(flock[i].x[0][0], x[static_cast<std::size_t>(i)], 1e-5) << name;
    }
  }
}

TEST(Exchange, WhoMeetsNobodyInARoundHasNothingToWrite) {
  const Schedule schedule = make_schedule("base-2", 3);  // in pairs
  Flock flock("base-2", 3);
  for (int t = 1; t <= 3; ++t) {
    flock.everyone([&](Worker& w) {
      const auto rank = static_cast<std::size_t>(w.transport->rank());
      for (int b = 0; b < 2; ++b) {
        w.mix(b);
        const Outgoing outgoing = w.exchange.outgoing(b);
        EXPECT_EQ(outgoing.values == nullptr, schedule.at(t).neighbours[rank].empty());
        w.exchange.start(b, write_block(w.x[b], outgoing, 0));
      }
    });
  }
}

// Every symmetric schedule, over the kernel that the optimizer uses.
TEST(Exchange, TheSumIsConservedOver1000RoundsOfEverySymmetricSchedule) {
  constexpr std::size_t kSize = 64;
  std::vector<std::string> names{"base-3", "base-4", "simple-base-3", "hyper-hypercube-3"};
  for (const ScheduleInfo& info : known_schedules()) names.push_back(info.example);
  for (const std::string& name : names) {
    for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33}) {
      const auto schedule = schedule_if_any(name, n, n % 2 == 0 ? 2 : 1);
      if (!schedule || !std::ranges::all_of(schedule->rounds, &Graph::symmetric)) continue;
      for (const auto& [wire, one_in] :
           {std::pair{Wire::fp32, 1U}, {Wire::int8, 1U}, {Wire::int4, 1U}, {Wire::fp32, 2U}}) {
        std::mt19937_64 random(7);
        std::vector<std::vector<float>> x(static_cast<std::size_t>(n), std::vector<float>(kSize));
        double before = 0, magnitude = 0;
        for (auto& worker : x) {
          for (float& value : worker) {
            value = std::normal_distribution<float>(1, 1)(random);
            before += value, magnitude += std::abs(value);
          }
        }
        Herd herd(wire, x, schedule->rounds.size(), one_in);
        for (int t = 0; t < (kSanitized ? 50 : 1000); ++t) herd.mix(schedule->at(t));
        EXPECT_NEAR(herd.sum(), before, 1e-6 * magnitude)
            << name << ", n " << n << ", " << name_of(wire) << ", one in " << one_in;
      }
    }
  }
}

// The slack of one step: both workers on ONE thread. If a step needed more of the neighbour than
// its last start(), this would never end.
TEST(Exchange, AWorkerFinishesAStepWhileItsNeighbourIsInTheMiddleOfIt) {
  Flock flock("complete", 2);
  for (int t = 0; t < 5; ++t) {
    EXPECT_EQ(flock[t % 2].step(), 2);  // ahead by one
    EXPECT_EQ(flock[1 - t % 2].step(), 2);
  }
  EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
}

TEST(Exchange, EarlyBlocksOfAFasterNeighbourAreKept) {
  // base-2 over four: worker 1 can be two rounds ahead of worker 0, as it meets 0, 3, 0, 3 ...
  Flock flock("base-2", 4);
  for (int i : {1, 2, 3}) EXPECT_EQ(flock[i].step(), 2);
  flock[1].step();  // round 2 was with worker 3
  for (int t = 0; t < 2; ++t) EXPECT_EQ(flock[0].step(), 2);
  EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
  EXPECT_EQ(flock[0].exchange.statistics().skipped_rounds, 0U);
}

TEST(Exchange, AnAverageOfSomethingElseIsAnError) {
  Flock flock("base-2", 2);
  std::array<std::string, 2> said;
  flock.everyone([&](Worker& w) {
    const auto rank = static_cast<std::size_t>(w.transport->rank());
    std::vector<float> values(rank + 1);
    said[rank] = refusal([&] { w.exchange.average(values); });
  });
  // The first to see it.
  EXPECT_THAT(said[0] + said[1], testing::HasSubstr("all must average the same"));
  // And they may meet again.
  flock.everyone([](Worker& w) { EXPECT_EQ(w.exchange.average({}), (std::set{0, 1})); });
}

TEST(Exchange, UnevenStepsEndWithoutAHang) {
  // Worker 0 has no more batches and goes to the average; the others have five steps left.
  // Edges, and a group.
  for (const Schedule& schedule : {triangle(), make_schedule("complete", 4)}) {
    SCOPED_TRACE(schedule.name);
    Flock flock(schedule);
    const auto n = static_cast<std::size_t>(schedule.workers());
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(i * i);
    const float mean = std::accumulate(values.begin(), values.end(), 0.0F) / static_cast<float>(n);
    flock.everyone([&](Worker& worker) {
      const int i = worker.transport->rank();
      for (int t = 0; t < (i == 0 ? 2 : 7); ++t) worker.step();
      EXPECT_EQ(worker.exchange.average({&values[static_cast<std::size_t>(i)], 1}).size(), n);
      worker.step();
    });
    for (const float value : values) EXPECT_NEAR(value, mean, 1e-6);
  }
}

// A worker that is no neighbour of a slow one may be ahead of it by as many rounds as there are
// edges between them.
TEST(Exchange, NobodyJumpsToWhereAWorkerIsThatIsNoNeighbour) {
  Flock flock("ring", 6);
  const auto everyone_steps = [&](const std::vector<int>& times) {
    flock.everyone([&](Worker& w) {
      for (int t = 0; t < times[static_cast<std::size_t>(w.transport->rank())]; ++t) w.step();
    });
  };
  everyone_steps({0, 1, 2, 3, 2, 1});
  for (int k = 0; k < 20; ++k) {  // after a new connection, workers tell their round
    flock[3].transport->reset(0, "test");
    std::this_thread::sleep_for(milliseconds(20));
  }
  everyone_steps({3, 2, 1, 0, 1, 2});
  flock.everyone([](Worker& w) {
    EXPECT_EQ(w.step(), 4);
    EXPECT_EQ(w.exchange.statistics().skipped_rounds, 0U);
  });
}

TEST(Exchange, AveragesBetweenStepsDoNotDisturbTheExchange) {
  Flock flock("base-2", 5);
  std::atomic<int> mixed = 0;
  flock.everyone([&](Worker& w) {
    for (int t = 0; t < 10; ++t) {
      w.step();
      std::vector<float> mean = w.x[0];
      EXPECT_EQ(w.exchange.average(mean).size(), 5U);
      std::int64_t largest = t;
      EXPECT_EQ(w.exchange.maximum({&largest, 1}).size(), 5U);
      EXPECT_EQ(largest, t);
    }
    mixed += static_cast<int>(w.exchange.statistics().aborted);
  });
  EXPECT_EQ(mixed, 0);
}

// As after loading a checkpoint. One worker is a step ahead of the others: all go on from its
// round.
TEST(Exchange, ARestartGoesOnAtAnyPlaceInTheScheduleFromNewValues) {
  const int n = 5;
  const Schedule schedule = make_schedule("base-2", n);
  const std::size_t period = schedule.rounds.size();
  ASSERT_GT(period, 2U);
  Flock flock("base-2", n);
  for (std::size_t position = 0; position < period; ++position) {
    flock.everyone([](Worker& w) { w.step(); });
    flock[1].step();
    flock.everyone([&](Worker& w) {
      w.exchange.restart(position);
      w.x[0][0] += 1;  // the exchange in flight did not know of this
      for (int b = 0; b < 2; ++b) w.write(b);
      EXPECT_EQ(w.exchange.position(true), position);
    });
    std::vector<double> x;
    for (int i = 0; i < n; ++i) x.push_back(flock[i].x[0][0]);
    flock.everyone([](Worker& w) { w.step(); });
    x = mixed(x, schedule.at(static_cast<std::int64_t>(position)));
    for (int i = 0; i < n; ++i) {
      EXPECT_NEAR(flock[i].x[0][0], x[static_cast<std::size_t>(i)], 1e-5)
          << "position " << position << ", worker " << i;
      // The worker ahead loses the round that the others never began, and nothing else.
      if (i != 1) {
        EXPECT_EQ(flock[i].exchange.statistics().aborted, 0U) << "worker " << i;
      }
      EXPECT_EQ(flock[i].exchange.statistics().skipped_rounds, 0U);
    }
  }
}

TEST(Exchange, ADirectedScheduleMixesWhatItReceives) {
  Flock flock("one-peer-exponential-directed", 3);
  for (int t = 0; t < 4; ++t) {
    flock.everyone([](Worker& w) { EXPECT_EQ(w.step(), 2); });
  }
  EXPECT_EQ(flock[0].exchange.statistics().directed_aborted, 0U);
  flock.hub.kill(2);
  ASSERT_TRUE(eventually([&] {
    flock[0].step(), flock[1].step();
    return flock[0].exchange.statistics().directed_aborted > 0;
  }));
}

}  // namespace
}  // namespace starling
