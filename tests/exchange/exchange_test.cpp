// Whole workers over the local transport: slack, patience, deaths, damage, jumps. The calls of
// several workers come from one thread wherever the protocol promises that none of them waits for
// the other.
#include "starling/exchange/exchange.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>

#include <gmock/gmock.h>

#include "starling/core/error.h"
#include "starling/kernels/update.h"
#include "starling/topology/schedules.h"
#include "starling/transport/local/local.h"
#include "tests/exchange/flock.h"
#include "tests/sanitized.h"

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
      std::vector<double> next;
      for (int i = 0; i < n; ++i) {
        double sum = schedule.at(t).self_weight(i) * x[static_cast<std::size_t>(i)];
        for (const Neighbour& j : schedule.at(t).neighbours[static_cast<std::size_t>(i)]) {
          sum += j.weight * x[static_cast<std::size_t>(j.rank)];
        }
        next.push_back(sum);
      }
      x = next;
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
      Schedule schedule;
      try {
        schedule = make_schedule(name, n, n % 2 == 0 ? 2 : 1);
      } catch (const UsageError&) {
        continue;  // the family does not exist for this n
      }
      if (!std::ranges::all_of(schedule.rounds, &Graph::symmetric)) continue;
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
        Herd herd(wire, x, schedule.rounds.size(), one_in);
        for (int t = 0; t < (kSanitized ? 50 : 1000); ++t) herd.mix(schedule.at(t));
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

TEST(Exchange, WithMaxWaitALateNeighbourCostsOneExchangeAndIsBackWhenItWakes) {
  Flock flock(triangle(), {.max_wait = milliseconds(2000)});
  const double before = flock.sum();
  flock.everyone([](Worker& w) { w.step(); });
  flock.hub.pause(2);
  std::thread one([&] { flock[1].step(), flock[1].step(); });
  flock[0].step();
  flock[0].step();
  one.join();
  int mixed = 0;
  for (int t = 0; t < 20; ++t) {  // worker 2 is not waited for: the two go on with each other
    flock[0].step();
    mixed += flock[1].step();
  }
  EXPECT_GE(mixed, 36);
  flock.hub.resume(2);
  // The exchange in flight when it fell asleep may have been decided before. The next exchange is
  // lost: in it the sleeper hears that the others went on, and asks for their round. (Here two on
  // one thread run on as fast as they can, so it may have to ask again.) Then it mixes again.
  // tests/optim/processes_test.cpp counts the losses.
  std::atomic<bool> stop = false;
  std::thread others([&] {
    while (!stop) flock[0].step(), flock[1].step();
  });
  flock[2].step();
  mixed = 0;
  for (int t = 0; t < 20 && mixed < 4; ++t) mixed = flock[2].step();
  stop = true;
  others.join();
  flock.everyone([](Worker& w) { w.end(); });
  EXPECT_EQ(mixed, 4);
  EXPECT_GT(flock[2].exchange.statistics().skipped_rounds, 10U);
  EXPECT_NEAR(flock.sum(), before, 1e-2);
  // Not always first: if the pause caught worker 2 between its votes, worker 1 has waited for it
  // before worker 0 does.
  EXPECT_THAT(flock[0].said(), testing::Contains(testing::HasSubstr("worker 2 is late")));
}

TEST(Exchange, WhoSleptWaitsForTheConnectionsThatTheOthersClosedMeanwhile) {
  Flock flock(triangle(), {.silent = milliseconds(400), .max_wait = milliseconds(60'000)});
  const double before = flock.sum();
  flock.everyone([](Worker& w) { w.step(); });
  flock[2].step();  // its blocks of round 3 are on their way
  flock.hub.pause(2);
  flock[0].step(), flock[1].step();
  for (int i : {0, 1}) flock.hub.sever(i, 2);
  for (int t = 0; t < 10; ++t) flock[0].step(), flock[1].step();
  std::this_thread::sleep_for(milliseconds(400));
  flock.hub.resume(2);
  std::atomic<bool> stop = false;
  std::thread others([&] {
    std::this_thread::sleep_for(milliseconds(100));
    for (int i : {0, 1}) flock.hub.mend(i, 2);
    while (!stop) flock[0].step(), flock[1].step();
  });
  EXPECT_EQ(flock[2].step(), 0);  // round 3
  EXPECT_EQ(flock[2].step(), 4);  // the next that it began
  stop = true;
  others.join();
  std::uint64_t last = 0;  // some may have begun a round more
  for (const auto& worker : flock.workers) last = std::max(last, worker->exchange.round());
  flock.everyone([last](Worker& w) {
    while (w.exchange.round() < last) w.step();
    w.end();
  });
  EXPECT_GT(flock[2].exchange.statistics().skipped_rounds, 8U);
  EXPECT_NEAR(flock.sum(), before, 1e-2);
}

TEST(Exchange, ADeadNeighbourCostsNothingMoreAndIsNamedOnce) {
  Flock flock(triangle());
  flock.everyone([](Worker& w) { w.step(); });
  flock.hub.kill(2);
  flock[0].step();
  flock[1].step();
  for (int t = 0; t < 5; ++t) {
    EXPECT_EQ(flock[0].step(), 2);
    EXPECT_EQ(flock[1].step(), 2);
  }
  ASSERT_TRUE(eventually([&] { return flock[0].exchange.lost() == std::set{2}; }));
  ASSERT_EQ(flock[0].said().size(), 1U);
  EXPECT_NE(flock[0].said()[0].find("worker 2 is gone"), std::string::npos);
  // The average is the survivors'.
  const float x0 = flock[0].x[0][0], x1 = flock[1].x[0][0];
  float mean0 = x0, mean1 = x1;
  std::thread one([&] { EXPECT_EQ(flock[1].exchange.average({&mean1, 1}), (std::set{0, 1})); });
  EXPECT_EQ(flock[0].exchange.average({&mean0, 1}), (std::set{0, 1}));
  one.join();
  EXPECT_NEAR(mean0, (x0 + x1) / 2, 1e-6);
  EXPECT_EQ(mean0, mean1);
}

TEST(Exchange, AnAverageOfSomethingElseIsAnError) {
  Flock flock("base-2", 2);
  std::array<std::string, 2> said;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      std::vector<float> values(i + 1);
      try {
        flock[static_cast<int>(i)].exchange.average(values);
      } catch (const Error& error) {
        said[i] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_NE((said[0] + said[1]).find("all must average the same"),
            std::string::npos);  // the first to see it
  // And they may meet again.
  std::thread other([&] { EXPECT_EQ(flock[1].exchange.average({}), (std::set{0, 1})); });
  EXPECT_EQ(flock[0].exchange.average({}), (std::set{0, 1}));
  other.join();
}

TEST(Exchange, ADeathInTheMiddleOfAnAverageDoesNotHangIt) {
  Flock flock("base-2", 4);
  std::atomic<int> done = 0;
  std::vector<std::thread> threads;
  std::vector<float> values{1, 2, 3};
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&, i] {
      EXPECT_EQ(flock[i].exchange.average({&values[static_cast<std::size_t>(i)], 1}), (std::set{0, 1, 2}));
      ++done;
    });
  }
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(done, 0);  // they wait for worker 3
  flock.hub.kill(3);
  for (auto& thread : threads) thread.join();
  for (const float value : values) EXPECT_NEAR(value, 2, 1e-6);
}

TEST(Exchange, ADamagedBlockIsNotMixedAndTheSumIsConserved) {
  Flock flock(triangle());
  const double before = flock.sum();
  flock.everyone([](Worker& w) { w.step(); });
  flock.hub.corrupt_next(1, 0);
  int mixed[3] = {};
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 3; ++i) mixed[i] += flock[i].step();
  }
  EXPECT_EQ(mixed[0], 15);  // one exchange of 16 lost, at both of its ends
  EXPECT_EQ(mixed[1], 15);
  EXPECT_EQ(mixed[2], 16);
  EXPECT_NEAR(flock.sum(), before, 1e-2);
}

// The kernel would shift by a neighbour's grid.
TEST(Exchange, AModularBlockWhoseGridIsOutOfBoundsIsNotMixed) {
  for (const int lie : {Grid::kFinest - 1, Grid::kCoarsest + 1, -2'000'000'000}) {
    Flock flock(triangle(), {}, Wire::int8);
    flock.everyone([](Worker& w) { w.step(); });
    const double before = flock.sum();
    flock[1].lie = lie;
    flock.everyone([](Worker& w) { w.step(); });
    flock[1].lie.reset();
    int mixed[3] = {};
    for (int t = 0; t < 2; ++t) {
      for (int i = 0; i < 3; ++i) mixed[i] += flock[i].step();
    }
    EXPECT_EQ(mixed[0], 6);  // both blocks of one round lost
    EXPECT_EQ(mixed[1], 4);  // of both neighbours
    EXPECT_EQ(mixed[2], 6);
    EXPECT_THAT(flock[0].said(), testing::Contains(testing::HasSubstr("worker 1 sent a damaged block 0")));
    flock.everyone([](Worker& w) { w.end(); });
    EXPECT_NEAR(flock.sum(), before, 1e-2);
  }
}

TEST(Exchange, NumbersThatAreNotFiniteAreNeverMixed) {
  Flock flock(triangle());
  flock[1].x[0][5] = std::nanf("");
  int mixed = 0;
  for (int t = 0; t < 4; ++t) {
    for (int i = 0; i < 3; ++i) {
      const int now = flock[i].step();
      if (i == 0) mixed += now;
    }
  }
  EXPECT_EQ(mixed, 16 - 3);  // block 0 of worker 1, from the second round on
  for (const auto& block : flock[0].x) {
    for (const float value : block) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(Exchange, ABrokenConnectionIsMendedAndTheSumIsRestored) {
  Flock flock(triangle());
  const double before = flock.sum();
  std::mt19937_64 random(3);
  for (int t = 0; t < 30; ++t) {
    if (t % 3 == 0) flock.hub.sever(0, 1);
    if (t % 3 == 1) flock.hub.mend(0, 1);
    for (int i = 0; i < 3; ++i) flock[i].step();
  }
  flock.hub.mend(0, 1);
  ASSERT_TRUE(eventually([&] { return flock[0].step() + flock[1].step() + flock[2].step() == 12; }));
  flock.everyone([](Worker& w) { w.end(); });
  EXPECT_NEAR(flock.sum(), before, 1e-2);
  EXPECT_GT(flock[0].exchange.statistics().aborted, 0U);
  // One round ahead is no reason to jump: the third worker waits for the round that would be left
  // out.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(flock[i].exchange.statistics().skipped_rounds, 0U) << "worker " << i;
}

TEST(Exchange, ALeaverIsNotWaitedFor) {
  // Edges, and a group.
  for (const Schedule& schedule : {triangle(), make_schedule("complete", 3)}) {
    SCOPED_TRACE(schedule.name);
    Flock flock(schedule);
    flock.everyone([](Worker& w) { w.step(); });
    flock.workers[2].reset();
    for (int t = 0; t < 3; ++t) flock[0].step(), flock[1].step();
    EXPECT_EQ(flock[0].step(), 2);
    EXPECT_TRUE(flock[0].exchange.lost().empty());  // it said goodbye
    EXPECT_TRUE(flock[0].said().empty());
  }
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
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < n; ++i) {
      threads.emplace_back([&, i] {
        Worker& worker = flock[static_cast<int>(i)];
        for (int t = 0; t < (i == 0 ? 2 : 7); ++t) worker.step();
        EXPECT_EQ(worker.exchange.average({&values[i], 1}).size(), n);
        worker.step();
      });
    }
    for (auto& thread : threads) thread.join();
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
    for (int i = 0; i < n; ++i) {
      const Graph& graph = schedule.at(static_cast<std::int64_t>(position));
      double mixed = graph.self_weight(i) * x[static_cast<std::size_t>(i)];
      for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(i)]) {
        mixed += j.weight * x[static_cast<std::size_t>(j.rank)];
      }
      EXPECT_NEAR(flock[i].x[0][0], mixed, 1e-5) << "position " << position << ", worker " << i;
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

struct Deaf : TransportHandler {
  void connected(int) override {}
  void disconnected(int, const std::string&) override {}
  void lost(int, const std::string&) override {}
  std::span<std::byte> place(int, const Frame&) override { return {}; }
  void received(int, const Frame&, std::span<const std::byte>, bool) override {}
};

// Worker 2 is not a worker but a bare end of the edges that sends arbitrary frames.
TEST(Exchange, NonsenseFromAPeerIsRefusedAndTheOthersGoOn) {
  Deaf deaf;
  LocalHub hub(3);
  const auto liar = hub.endpoint(2);
  liar->start(deaf);
  liar->open(0);
  liar->open(1);
  const Schedule schedule = make_schedule("complete", 3);
  const Patience patience{.max_wait = milliseconds(500)};
  Worker zero(hub, 0, schedule, patience), one(hub, 1, schedule, patience);
  std::thread other([&] { one.begin(); });
  zero.begin();
  other.join();
  std::mt19937_64 random(11);
  const auto junk = std::make_shared<std::vector<float>>(Worker::size, 1e6F);
  for (int i = 0; i < 2000; ++i) {
    Frame frame;
    frame.type = static_cast<FrameType>(random() % 32);
    frame.epoch = random() % 4 == 0 ? 1 : 0;
    frame.round = random() % 3 == 0 ? random() : random() % 60;
    frame.block = static_cast<std::uint32_t>(random() % 4);
    frame.step = static_cast<std::uint32_t>(random() % 3);
    frame.value = random() % 2 == 0 ? random() % 3 : random() % 100;
    if (frame.type == FrameType::leave) continue;
    const std::size_t length = random() % 3 == 0 ? random() % 5000 : 0;
    liar->send(static_cast<int>(random() % 2), frame, {junk, std::as_bytes(std::span(*junk)).first(length)});
  }
  int mixed = 0;
  for (int t = 0; t < 200; ++t) {
    std::thread step([&] { one.step(); });
    mixed += zero.step();
    step.join();
  }
  EXPECT_GT(mixed, 100);
  for (const auto& block : zero.x) {
    for (const float value : block) ASSERT_LT(std::abs(value), 10);  // none of the liar's numbers
  }
  // A block that is whole, intact and in time is believed: peers with the token are trusted for
  // their values.
}

TEST(Exchange, AWorkerThatHasComeAndGoneAgainIsNotWaitedFor) {
  LocalHub hub(2);
  const Schedule schedule = make_schedule("complete", 2);
  auto zero = std::make_unique<Worker>(hub, 0, schedule, Patience{});
  Worker one(hub, 1, schedule, {.meet = milliseconds(100), .max_wait = {}});
  one.transport->open(0);
  zero->exchange.meet();
  zero.reset();
  std::promise<void> heard;
  one.transport->post([&] { heard.set_value(); });
  heard.get_future().wait();
  EXPECT_NO_THROW(one.exchange.meet());
}

TEST(Exchange, AWorkerThatDiesBeforeItIsMetIsNamedAtOnce) {
  LocalHub hub(2);
  Deaf deaf;
  const auto dies = hub.endpoint(1);
  dies->start(deaf);
  Worker zero(hub, 0, make_schedule("complete", 2), {.meet = std::chrono::hours(1), .max_wait = {}});
  std::promise<void> opened;
  hub.pause(1);
  zero.transport->open(1);
  zero.transport->post([&] { opened.set_value(); });
  opened.get_future().wait();
  hub.kill(1);
  try {
    zero.exchange.meet();
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("worker 0: worker 1 is gone before all have met ("));
  }
  EXPECT_TRUE(zero.said().empty());
}

TEST(Exchange, AWorkerThatDoesNotComeIsNamed) {
  LocalHub hub(3);
  Worker alone(hub, 0, make_schedule("complete", 3), {.meet = milliseconds(100), .max_wait = {}});
  try {
    alone.exchange.meet();
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("worker 0: no connection to workers 1, 2"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace starling
