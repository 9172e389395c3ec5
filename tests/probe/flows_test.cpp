#include "starling/probe/flows.h"

#include "starling/probe/probe.h"
#include "starling/transport/local/local.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

using std::chrono::milliseconds;

// Waits until the first n workers have come here.
void meet(World& world, int n, const std::string& place = "done") {
  world.store->set(place + std::to_string(world.rank), "");
  for (int i = 0; i < n; ++i) world.store->get(place + std::to_string(i), milliseconds(60'000));
}

TEST(Flows, EveryFlowArrivesAtItsReceiverAlone) {
  flock(3, [](int i, World& world) {
    Flows flows(world);
    const std::set<int> others = i == 0 ? std::set{1, 2} : i == 1 ? std::set{0, 2} : std::set{0, 1};
    for (int repetition = 0; repetition < 3; ++repetition) {
      const auto rates = flows.stream({(i + 1) % 3}, {(i + 2) % 3}, milliseconds(20));
      ASSERT_EQ(rates.size(), 1U);
      EXPECT_EQ(rates.begin()->first, (i + 2) % 3);
      EXPECT_GT(rates.begin()->second, 0);
      EXPECT_EQ(flows.stream(others, others, milliseconds(20)).size(), 2U);
      // One sends, one receives, one does neither.
      const auto one = flows.stream(i == 0 ? std::set{1} : std::set<int>{},
                                    i == 1 ? std::set{0} : std::set<int>{}, milliseconds(20));
      EXPECT_EQ(one.size(), i == 1 ? 1U : 0U);
      // A worker without a part may come to the next stream long before the others.
    }
    flows.stream({}, {}, milliseconds(0));
    EXPECT_NO_THROW(flows.check());
    meet(world, 3);
  });
}

TEST(Flows, EvenTheShortestStreamHasARate) {
  flock(2, [](int i, World& world) {
    Flows flows(world);
    const auto rates = flows.stream({1 - i}, {1 - i}, milliseconds(0));
    EXPECT_GT(rates.at(1 - i), 0);
    meet(world, 2);
  });
}

TEST(Flows, LatencyNeedsNoCallByTheOther) {
  flock(2, [](int i, World& world) {
    Flows flows(world);
    if (i == 0) {
      EXPECT_GT(flows.latency(1, 5), 0);
    }
    meet(world, 2);
  });
}

TEST(Flows, WhoGoesIsNamed) {
  flock(3, [](int i, World& world) {
    auto flows = std::make_unique<Flows>(world);
    meet(world, 3, "here");
    if (i == 2) return;  // it leaves
    try {
      for (;;) flows->stream({2}, {2}, milliseconds(10));
      FAIL() << "no error";
    } catch (const WorkerGone& gone) {
      EXPECT_EQ(gone.rank, 2);
      EXPECT_THAT(gone.what(), testing::StartsWith("probe: worker 2 was lost during it: "));
    }
    EXPECT_THROW(flows->check(), WorkerGone);
    meet(world, 2);
  });
}

// A worker whose own connections are whole hears of it.
TEST(Flows, WhoMissesAWorkerTellsTheOthers) {
  LocalHub hub(3);
  flock(3, [&](int i, World& world) {
    world.make_transport = [&](const World& the, const std::string&) { return hub.endpoint(the.rank); };
    Flows flows(world);
    meet(world, 3, "here");
    if (i == 0) {
      hub.sever(1, 2);
      try {
        flows.check(milliseconds(60'000));
        FAIL() << "no error";
      } catch (const WorkerGone& gone) {
        EXPECT_NE(gone.rank, 0);
        EXPECT_THAT(gone.what(), testing::EndsWith(" has lost it"));
      }
    }
    meet(world, 3);
  });
}

// It lives, but takes no part.
TEST(Flows, WhoDoesNotAnswerIsNotWaitedForForEver) {
  flock(2, [](int i, World& world) {
    world.timeouts.stalled = milliseconds(50);
    Flows flows(world);
    if (i == 0) {
      EXPECT_THAT(refusal([&] { flows.stream({}, {1}, milliseconds(1)); }),
                  testing::StartsWith("probe: worker 0: worker 1 did not come within 0.1 s"));
    }
    meet(world, 2);
  });
}

TEST(Flows, AnInterruptionEndsTheWait) {
  flock(2, [](int i, World& world) {
    Flows flows(world);
    world.interrupted = [] { return true; };
    if (i == 0) {
      EXPECT_THROW(flows.stream({}, {1}, milliseconds(1)), Error);
    }
    meet(world, 2);
  });
}

TEST(Probe, ThreadsAreOneHost) {
  flock(3, [](int, World& world) {
    const ProbeResult result = probe(world, {.seconds = 0.05});
    ASSERT_EQ(result.network.hosts.size(), 1U);
    EXPECT_THAT(result.network.hosts[0].workers, testing::ElementsAre(0, 1, 2));
    EXPECT_GT(result.network.inside_latency, 0);
    EXPECT_GT(result.network.inside_rate, 0);
    const auto& all_reduce = result.network.all_reduce;
    ASSERT_GE(all_reduce.size(), 2U);  // a busy machine may stop before the largest
    EXPECT_EQ(all_reduce[0].bytes, 64 << 10);
    for (std::size_t k = 1; k < all_reduce.size(); ++k)
      EXPECT_GT(all_reduce[k].bytes, all_reduce[k - 1].bytes);
    for (const AllReduceTime& time : all_reduce) EXPECT_GT(time.seconds, 0);
    EXPECT_EQ(print_profile(parse_profile(print_profile(result.network), "p.json")),
              print_profile(result.network));
  });
}

TEST(Probe, OneAloneIsRefused) { EXPECT_THROW(probe(World::alone()), UsageError); }

}  // namespace
}  // namespace starling
