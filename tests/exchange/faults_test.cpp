// Whole workers over the local transport, of which some are late, die, leave, lie or do not come.
// The calls of several workers come from one thread wherever the protocol promises that none of
// them waits for the other.
#include <atomic>
#include <future>

#include <gmock/gmock.h>

#include "tests/exchange/deaf.h"
#include "tests/exchange/flock.h"
#include "tests/refusal.h"

namespace starling {
namespace {

TEST(Exchange, WithMaxWaitALateNeighbourCostsOneExchangeAndIsBackWhenItWakes) {
  Flock flock(triangle(), {.max_wait = milliseconds(2000)});
  const double before = flock.sum();
  flock.everyone([](Worker& w) { w.step(); });
  int mixed = flock.steps_while_2_sleeps();
  EXPECT_GE(mixed, 36);
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
  for (int t = 0; t < 10; ++t) EXPECT_EQ(flock[t % 2].step(), 2);
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

struct Parted {
  int workers;
  std::set<int> part;  // the others are the rest
  std::set<int> dead;  // before
  bool part_sees, rest_sees;
};

TEST(Exchange, OnlyOnePartOfANetworkSeesAMajority) {
  for (const Parted& in : {Parted{2, {1}, {}, false, true},
                           {4, {3}, {}, false, true},
                           {4, {0}, {}, false, true},
                           {4, {2, 3}, {}, false, true},   // half of them, without the lowest
                           {5, {3, 4}, {1}, false, true},  // likewise, of those that are left
                           {5, {1, 4}, {0}, true, false},  // with the lowest one that is left
                           {5, {0, 3}, {1, 4}, true, false}}) {
    SCOPED_TRACE(testing::PrintToString(in.part) + " of " + std::to_string(in.workers));
    const auto is_in = [&](const std::set<int>& some, int rank) { return some.contains(rank); };
    Flock flock("ring", in.workers, {.silent = milliseconds(300), .stalled = milliseconds(200)});
    for (const int rank : in.dead) flock.hub.kill(rank);
    const auto each = [&](const auto& f) {
      for (int i = 0; i < in.workers; ++i) {
        if (!is_in(in.dead, i)) f(i);
      }
    };
    const auto each_cut = [&](const auto& f) {
      each([&](int i) {
        each([&](int j) {
          if (is_in(in.part, i) && !is_in(in.part, j)) f(i, j);
        });
      });
    };
    each_cut([&](int i, int j) { flock.hub.sever(i, j); });
    each([&](int i) {
      std::set<int> cut_off;
      each([&](int j) {
        if (is_in(in.part, i) != is_in(in.part, j)) cut_off.insert(j);
      });
      Exchange& exchange = flock[i].exchange;
      const bool sees = is_in(in.part, i) ? in.part_sees : in.rest_sees;
      // Again if this machine slept meanwhile: a worker that slept takes all others for seen.
      EXPECT_TRUE(eventually([&] {
        return exchange.unseen() == cut_off && exchange.sees_majority() == sees &&
               exchange.wait_for_majority(nobody) == sees;  // after `stalled`
      })) << i;
      EXPECT_TRUE(exchange.wait_for_majority([] { return true; }));
    });
    each_cut([&](int i, int j) { flock.hub.mend(i, j); });
    each([&](int i) {
      EXPECT_TRUE(flock[i].exchange.wait_for_majority(nobody) ||
                  eventually([&] { return flock[i].exchange.sees_majority(); }));
      EXPECT_TRUE(eventually([&] { return flock[i].exchange.unseen().empty(); }));
    });
  }
}

// Worker 0 calls while its edge is broken. Worker 1 waits in an average to which 0 does not come.
TEST(Exchange, ACallToARenewalIsRepeatedOnReconnection) {
  LocalHub hub(2);
  const auto end = [&](int rank) {
    return std::make_unique<Exchange>(hub.endpoint(rank), make_schedule("complete", 2),
                                      std::vector<std::size_t>(), ExchangeOptions{.renewable = true});
  };
  const auto zero = end(0), one = end(1);
  auto met = std::async(std::launch::async, [&] { one->meet(); });
  zero->meet();
  met.get();
  hub.sever(0, 1);
  ASSERT_TRUE(eventually([&] { return !zero->hears(1) && !one->hears(0); }));
  auto waits = std::async(std::launch::async, [&] {
    float value = 1;
    EXPECT_THROW(one->average({&value, 1}), RenewalCalled);
    std::int64_t largest = 1;
    EXPECT_EQ(one->renew({&largest, 1}), (std::set{0, 1}));
    EXPECT_EQ(largest, 2);
  });
  zero->call_renewal();
  ASSERT_TRUE(eventually([&] { return zero->renewal_called(); }));
  EXPECT_FALSE(one->renewal_called());
  hub.mend(0, 1);
  std::int64_t largest = 2;
  EXPECT_EQ(zero->renew({&largest, 1}), (std::set{0, 1}));
  waits.get();
  EXPECT_TRUE(one->renewal_called());
}

// Worker 0 has mixed round 1 and begun round 2, which worker 1 never begins.
TEST(Exchange, AfterARenewalBothEndsHaveMixedTheSameAndNobodyWaits) {
  for (const bool ahead_comes_first : {true, false}) {
    Flock flock(triangle());
    flock[0].mix(0), flock[0].mix(1);
    flock[2].mix(0), flock[2].mix(1);
    for (const std::size_t i : {0, 2}) flock[i].write(0), flock[i].write(1);
    const auto renew = [&](std::size_t i) {
      return std::async(std::launch::async, [&flock, i] {
        std::int64_t nothing = 0;
        EXPECT_EQ(flock[i].exchange.renew({&nothing, 1}), (std::set{0, 1, 2}));
        flock[i].end();
      });
    };
    std::vector<std::future<void>> all;
    for (const std::size_t i : ahead_comes_first ? std::array{0, 2, 1} : std::array{1, 2, 0}) {
      all.push_back(renew(i));
      std::this_thread::sleep_for(milliseconds(50));
    }
    for (auto& one : all) one.get();
    std::array<std::map<int, std::uint64_t>, 3> mixed;
    for (std::size_t i = 0; i < 3; ++i) {
      mixed[i] = flock[i].exchange.statistics().mixed;
      EXPECT_THAT(flock[i].said(), testing::IsEmpty());
    }
    EXPECT_EQ(mixed[0], (std::map<int, std::uint64_t>{{1, 2}, {2, 4}}));
    EXPECT_EQ(mixed[1], (std::map<int, std::uint64_t>{{0, 2}, {2, 2}}));
    EXPECT_EQ(mixed[2], (std::map<int, std::uint64_t>{{0, 4}, {1, 2}}));
  }
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
  // One exchange of 16 is lost, at both of its ends.
  EXPECT_EQ(flock.steps(4), (std::vector{15, 15, 16}));
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
    // Both blocks of one round are lost, at worker 1 those of both neighbours.
    EXPECT_EQ(flock.steps(2), (std::vector{6, 4, 6}));
    EXPECT_THAT(flock[0].said(), testing::Contains(testing::HasSubstr("worker 1 sent a damaged block 0")));
    flock.everyone([](Worker& w) { w.end(); });
    EXPECT_NEAR(flock.sum(), before, 1e-2);
  }
}

TEST(Exchange, NumbersThatAreNotFiniteAreNeverMixed) {
  Flock flock(triangle());
  flock[1].x[0][5] = std::nanf("");
  EXPECT_EQ(flock.steps(4)[0], 16 - 3);  // block 0 of worker 1, from the second round on
  for (const auto& block : flock[0].x) {
    for (const float value : block) ASSERT_TRUE(std::isfinite(value));
  }
}

// Swaps in doubt, and swaps mended late: each with the mask of its own round.
TEST(Exchange, ABrokenConnectionIsMendedAndTheSumIsRestored) {
  struct Broken {
    Schedule schedule;  // edges, or a group
    int one_in;
    int whole;  // arrivals that all mix in a step
  };
  for (const auto& [schedule, one_in, whole] : {Broken{triangle(), 1, 12},
                                                {triangle(), 3, 12},
                                                {make_schedule("complete", 3), 3, 6},
                                                {make_schedule("complete", 4), 1, 8}}) {
    SCOPED_TRACE(schedule.name + ", one in " + std::to_string(one_in));
    Flock flock(schedule, {}, Wire::fp32, one_in);
    const double before = flock.sum();
    ASSERT_TRUE(flock.mends_its_edge(whole));
    flock.everyone([](Worker& w) { w.end(); });
    EXPECT_NEAR(flock.sum(), before, 1e-2);
    if (one_in > 1) continue;
    EXPECT_GT(flock[0].exchange.statistics().aborted, 0U);
    // One round ahead is no reason to jump: the other workers wait for the round that would be left
    // out.
    for (const auto& worker : flock.workers) EXPECT_EQ(worker->exchange.statistics().skipped_rounds, 0U);
  }
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
  EXPECT_THAT(refusal([&] { zero.exchange.meet(); }),
              testing::StartsWith("worker 0: worker 1 is gone before all have met ("));
  EXPECT_TRUE(zero.said().empty());
}

TEST(Exchange, AWorkerThatDoesNotComeIsNamed) {
  LocalHub hub(3);
  Worker alone(hub, 0, make_schedule("complete", 3), {.meet = milliseconds(100), .max_wait = {}});
  EXPECT_THAT(refusal([&] { alone.exchange.meet(); }),
              testing::HasSubstr("worker 0: no connection to workers 1, 2"));
}

}  // namespace
}  // namespace starling
