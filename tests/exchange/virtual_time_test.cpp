// The exchange on virtual workers: the time of a step, and independence of the machine.
#include <algorithm>

#include <fmt/format.h>

#include "tests/exchange/flock.h"
#include "tests/virtual_workers.h"

namespace starling {
namespace {

using namespace std::chrono_literals;

constexpr int kSteps = 20;
constexpr double kBlock = 4 * Worker::size;  // bytes; a worker has two

struct Trained {
  std::vector<std::vector<float>> x;  // by worker, its first block
  std::vector<double> seconds;        // by worker, at its end
};

// compute(worker, step): the time of a step.
Trained train(const std::string& schedule, int n, double rate,
              const std::function<Duration(int, int)>& compute, Duration latency = {}) {
  VirtualHub cluster(n, rate, latency);
  const Schedule rounds = make_schedule(schedule, n);
  Trained all;
  all.x.resize(static_cast<std::size_t>(n));
  all.seconds.resize(static_cast<std::size_t>(n));
  cluster.run([&](int rank) {
    Worker worker(cluster.hub, rank, rounds, {});
    worker.begin();
    for (int step = 0; step < kSteps; ++step) {
      cluster.time->sleep(compute(rank, step));
      worker.step();
    }
    worker.end();
    all.x[static_cast<std::size_t>(rank)] = worker.x[0];
    all.seconds[static_cast<std::size_t>(rank)] = seconds(cluster.time->now().time_since_epoch());
  });
  return all;
}

// A step takes as long as its compute or its link, whichever is longer.
TEST(VirtualWorkers, AStepTakesTheLongerOfComputeAndLink) {
  for (const double link_ms : {2.0, 50.0}) {
    const double rate = 2 * kBlock / (1e-3 * link_ms);
    const Trained all = train("one-peer-exponential", 4, rate, [](int, int) { return 10ms; });
    const double want = kSteps * std::max(10.0, link_ms) + link_ms;  // the last exchange too
    for (const double end : all.seconds)
      EXPECT_NEAR(1e3 * end, want, 0.02 * want) << "link: " << link_ms << " ms";
  }
}

// Two are late once, by 15 ms. A worker ahead of them does not send them blocks of the next round
// while they exchange those of the last, which would cost them 12 ms more.
TEST(VirtualWorkers, LateWorkersAreNotHeldUpByThoseAhead) {
  const Trained all = train("base-2", 4, 2 * kBlock / 0.025, [](int worker, int step) -> Duration {
    return worker % 2 == 0 && step == 3 ? 39ms : 24ms;
  });
  for (const double end : all.seconds) EXPECT_LT(1e3 * end, 25 * (kSteps + 1) + 15 + 5);
}

// A round of the same group as the last one need not wait until that is over everywhere, which
// takes a latency more.
TEST(VirtualWorkers, ThePresentRoundOfOneGroupWaitsForNothing) {
  const Trained all = train("complete", 5, 4 * kBlock * 4 / 5 / 0.05, [](int, int) { return 10ms; }, 2ms);
  for (const double end : all.seconds)
    EXPECT_LT(1e3 * end, 1354);  // 1374 if it waits, 1000 if links never idled
}

// A member of a group leaves after its last step, while another is late for its own. The third one
// tells the late one that the group is off: only it can then say where it is.
TEST(VirtualWorkers, NobodyWaitsForAGroupMemberThatHasLeft) {
  VirtualHub cluster(3, 1e9, 1ms);
  const Schedule rounds = make_schedule("complete", 3);
  std::vector<double> ends(3);
  cluster.run([&](int rank) {
    Worker worker(cluster.hub, rank, rounds, {});
    worker.begin();
    for (int step = 0; step < 3; ++step) {
      cluster.time->sleep(rank == 1 && step == 2 ? 30ms : 10ms);
      worker.step();
    }
    if (rank == 0) cluster.time->sleep(100ms);
    ends[static_cast<std::size_t>(rank)] = seconds(cluster.time->now().time_since_epoch());
  });
  for (const double end : ends) EXPECT_LT(end, 1);
}

// Worker 2 sleeps for 20 s, and is then that far behind. Each operation waits for it no longer than
// for a silent worker, until it has caught up. When it misses the first average of an operation, it
// leaves out the second one.
TEST(VirtualWorkers, APauseIsNotEverybodysPause) {
  VirtualHub cluster(3, 1e9);
  const Patience patience{};
  std::vector<std::vector<std::size_t>> took_part(3);
  double longest = 0;
  cluster.run([&](int rank) {
    Worker worker(cluster.hub, rank, make_schedule("ring", 3), patience);
    worker.begin();
    for (int step = 1; step <= 160; ++step) {
      if (rank == 2 && step == 10) {
        cluster.hub.pause(2);
        cluster.time->sleep(20s);
        cluster.hub.resume(2);
      }
      cluster.time->sleep(500ms);
      worker.step();
      if (step % 20 != 0) continue;
      const Time begin = cluster.time->now();
      float x = 1;
      worker.exchange.begin_operation();
      const std::size_t others = worker.exchange.average({&x, 1}).size();
      const std::size_t again = others == 0 ? 0 : worker.exchange.average({&x, 1}).size();
      EXPECT_EQ(again, others);
      worker.exchange.end_operation();
      if (rank != 2) longest = std::max(longest, seconds(cluster.time->now() - begin));
      took_part[static_cast<std::size_t>(rank)].push_back(others);
    }
  });
  EXPECT_LT(longest, seconds(patience.silent) * 1.2);
  EXPECT_EQ(took_part[0], took_part[1]);
  EXPECT_EQ(took_part[0].front(), 2U);
  EXPECT_EQ(took_part[2].front(), 0U);
  for (const auto& each : took_part) EXPECT_EQ(each.back(), 3U);
}

// The neighbours of worker 0 in a ring of four send it a block, and then their own.
TEST(VirtualWorkers, ABlockThatComesTwiceIsMixedOnce) {
  constexpr float kFirst = 2;
  VirtualHub cluster(4, 1e9);
  const auto first = std::make_shared<const std::vector<float>>(Worker::size, kFirst);
  cluster.run([&](int rank) {
    Worker worker(cluster.hub, rank, make_schedule("ring", 4), {});
    worker.exchange.meet();
    for (std::uint32_t b = 0; rank % 2 == 1 && b < 2; ++b) {
      worker.transport->send(0, {.type = FrameType::data, .round = 1, .block = b},
                             {first, std::as_bytes(std::span(*first))});
    }
    cluster.time->sleep(1s);
    const float mine = worker.x[0][5];
    for (int b = 0; b < 2; ++b) worker.write(b);
    for (int b = 0; b < 2; ++b) EXPECT_EQ(worker.mix(b), 2) << "worker " << rank;
    EXPECT_EQ(rank == 0, std::abs(worker.x[0][5] - (mine + 2 * kFirst) / 3) < 1e-6) << "worker " << rank;
    cluster.time->sleep(1s);
  });
}

TEST(VirtualWorkers, AReturnerThatFindsNobodyIsNoSurvivor) {
  for (const bool sleeps : {true, false}) {
    VirtualHub cluster(2, 1e9);
    cluster.run([&](int rank) {
      Worker worker(cluster.hub, rank, make_schedule("ring", 2), {});
      worker.begin();
      worker.step();
      if (rank == 0) return;
      if (sleeps) cluster.hub.pause(1);
      cluster.time->sleep(20s);
      if (sleeps) cluster.hub.resume(1);
      cluster.time->sleep(1s);
      EXPECT_EQ(worker.exchange.average({}), sleeps ? std::set<int>() : std::set{1});
    });
  }
}

// Workers sleep together, and find each other again: half of the run does not survive it, the whole
// run goes on.
TEST(VirtualWorkers, ReturnersThatFindEachOtherAreASurvivorOnlyAsMoreThanHalf) {
  for (const int awake : {0, 1, 2}) {
    VirtualHub cluster(4, 1e9);
    cluster.run([&](int rank) {
      Worker worker(cluster.hub, rank, make_schedule("ring", 4), {});
      worker.begin();
      worker.step();
      EXPECT_EQ(worker.exchange.average({}).size(), 4U);
      if (rank < awake) return;
      cluster.hub.pause(rank);
      cluster.time->sleep(20s);
      cluster.hub.resume(rank);
      cluster.time->sleep(1s);
      EXPECT_EQ(worker.exchange.average({}).size(), awake == 2 ? 0U : 4U - static_cast<unsigned>(awake));
    });
  }
}

// A member of the run takes part, tells a neighbour a far round or attempt, and leaves. The others
// lose a few rounds at most, and all of them come to the average at the end.
TEST(VirtualWorkers, AClaimOfAFarRoundFreezesNobody) {
  constexpr std::uint64_t kPossible = 20'000, kFar = std::uint64_t{1} << 31, kFarthest = ~std::uint64_t{0};
  const auto no_one = std::make_shared<const std::vector<std::byte>>(1);
  for (const char* schedule : {"ring", "base-2", "complete"}) {
    const Schedule rounds = make_schedule(schedule, 4);
    const int neighbour = rounds.at(0).neighbours[3].front().rank;
    for (const Frame& claim :
         std::initializer_list<Frame>{{.type = FrameType::resume, .value = kPossible},
                                      {.type = FrameType::resume, .value = kFar},
                                      {.type = FrameType::resume, .value = kFarthest},
                                      {.type = FrameType::abort, .value = kFar},
                                      {.type = FrameType::skip, .round = kPossible},
                                      {.type = FrameType::skip, .round = kFar},
                                      {.type = FrameType::ready, .round = kPossible},
                                      {.type = FrameType::ready, .round = kFarthest},
                                      {.type = FrameType::group_abort, .value = kFar},
                                      {.type = FrameType::join, .round = 1, .block = ~0U},
                                      {.type = FrameType::join, .value = kFar}}) {
      SCOPED_TRACE(fmt::format("{}: frame {}, round {}, block {}, value {}", schedule,
                               static_cast<int>(claim.type), claim.round, claim.block, claim.value));
      VirtualHub cluster(4, 1e9, 1ms);
      cluster.run([&](int rank) {
        Worker worker(cluster.hub, rank, rounds, {});
        worker.begin();
        const auto steps = [&](int n) {
          for (int step = 0; step < n; ++step) {
            cluster.time->sleep(10ms);
            worker.step();
          }
        };
        steps(5);
        if (rank == 3) {
          const bool join = claim.type == FrameType::join;
          worker.transport->send(neighbour, claim, join ? Payload{no_one, *no_one} : Payload{});
          return;
        }
        steps(20);
        std::vector<float> mean(1);
        EXPECT_EQ(worker.exchange.average(mean).size(), 3U) << "worker " << rank;
        EXPECT_LT(seconds(cluster.time->now().time_since_epoch()), 1) << "worker " << rank;
        EXPECT_LT(worker.exchange.statistics().aborted, 50U) << "worker " << rank;
        const bool refused = std::ranges::any_of(worker.said(), [](const std::string& line) {
          return line.starts_with("worker 3 is refused: it claims round ");
        });
        EXPECT_EQ(refused, rank == neighbour && std::max(claim.round, claim.value) >= kFar) << rank;
      });
    }
  }
}

// Two neighbours are away for more rounds than frames may be ahead. The first that is back sends to
// the other, which does not know yet how far the run is.
TEST(VirtualWorkers, TwoThatWereAwayForLongComeBackTogether) {
  constexpr int kAway = 1500;
  VirtualHub cluster(4, 1e9, 1ms);
  const Schedule rounds = make_schedule("ring", 4);
  cluster.run([&](int rank) {
    const bool sleeps = rank == 1 || rank == 2;
    Worker worker(cluster.hub, rank, rounds,
                  {.max_wait = sleeps ? std::nullopt : std::optional(milliseconds(50))});
    worker.begin();
    worker.step();
    if (sleeps) {
      cluster.time->sleep(kAway * 10ms + rank * 1500us);
    } else {
      for (int step = 0; step < kAway; ++step) {
        cluster.time->sleep(10ms);
        for (int b = 0; b < 2; ++b) {
          worker.exchange.finish(b);
          worker.exchange.start(b, (worker.exchange.outgoing(b), true));
        }
      }
    }
    for (int step = 0; step < 20; ++step) {
      cluster.time->sleep(10ms);
      worker.step();
    }
    EXPECT_LT(seconds(cluster.time->now().time_since_epoch()), 0.01 * kAway + 2) << "worker " << rank;
  });
}

// The wait itself goes on: the worker is alive.
TEST(VirtualWorkers, WhoIsWaitedForIsNamed) {
  VirtualHub cluster(3, 1e9, 1ms);
  const Schedule rounds = make_schedule("ring", 3);
  cluster.run([&](int rank) {
    Worker worker(cluster.hub, rank, rounds, {});
    worker.begin();
    worker.step();
    if (rank == 2) cluster.time->sleep(20s);
    worker.step(), worker.step();
    if (rank == 2) cluster.time->sleep(20s);
    std::vector<float> mean(1);
    worker.exchange.average(mean);
    const std::vector<std::string> named{"round 3 has waited 5.0 s for worker 2",
                                         "an average has waited 5.0 s for worker 2"};
    EXPECT_EQ(worker.said(), rank == 2 ? std::vector<std::string>{} : named) << "worker " << rank;
  });
}

TEST(VirtualWorkers, AWorkerThatIsLateInEachStepIsNamedSeldom) {
  const auto time = std::make_shared<VirtualTime>(3);
  LocalHub hub(3, {}, virtual_network(time, 1e9, 1ms));
  const Schedule rounds = triangle();
  virtual_workers(*time, 3, [&](int rank) {
    const bool is_slow = rank == 2;
    Worker worker(hub, rank, rounds, {.max_wait = is_slow ? std::nullopt : std::optional(milliseconds(10))});
    worker.begin();
    for (int step = 0; step < (is_slow ? 50 : 400); ++step) {
      time->sleep(is_slow ? 40ms : 5ms);
      worker.step();
    }
    if (is_slow) return;
    const std::vector<std::string> said = worker.said();
    const auto named = std::ranges::count_if(
        said, [](const std::string& line) { return line.starts_with("worker 2 is late (no block after "); });
    EXPECT_GE(named, 1) << "worker " << rank;
    EXPECT_LE(named, 5) << "worker " << rank;
  });
}

TEST(VirtualWorkers, TheSameSeedGivesTheSameBitsAndTimes) {
  const auto once = [] {
    std::mt19937_64 random(4);
    return train("base-2", 6, 1e8, [&](int, int) {
      return std::chrono::duration_cast<Duration>(10ms * std::lognormal_distribution<>(0, 0.5)(random));
    });
  };
  const Trained first = once(), second = once();
  EXPECT_EQ(first.seconds, second.seconds);
  EXPECT_EQ(first.x, second.x);
  EXPECT_GT(first.seconds[0], 0.01 * kSteps);
}

}  // namespace
}  // namespace starling
