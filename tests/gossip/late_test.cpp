// Gossip on virtual workers with neighbours that lie, come too late or stand still.
#include <span>
#include <tuple>

#include "tests/exchange/deaf.h"
#include "tests/gossip/virtual_gossip.h"

namespace starling {
namespace {

void train(VirtualHub& cluster, Gossiper& gossip, int steps) {
  for (int k = 0; k < steps; ++k) {
    cluster.time->sleep(kGradient);
    gossip->stepped();
  }
}

// A neighbour whose codes are on a grid of steps of 2^100.
struct Liar final : Deaf {
  explicit Liar(Transport& transport) : transport(transport) {}
  void connected(int peer) override { transport.send(peer, {.type = FrameType::ask, .round = 2}); }
  std::span<std::byte> place(int, const Frame& frame) override {
    room.resize(frame.length);
    return room;
  }
  void received(int peer, const Frame& frame, std::span<const std::byte>, bool) override {
    if (frame.type == FrameType::abort) refused = true;
    if (frame.type != FrameType::answer || frame.value == 0) return;
    const auto block = transport.buffer(block_bytes(Wire::int8, kSize));
    std::ranges::fill(*block, std::byte{1});
    set_trailer(*block, Wire::int8, {.exponent = 100});
    transport.send(peer,
                   {.type = FrameType::data, .dtype = static_cast<std::uint8_t>(Wire::int8), .round = 2},
                   payload_of(block));
    transport.send(peer, {.type = FrameType::ack, .round = 2});
  }
  Transport& transport;
  std::vector<std::byte> room;
  bool refused = false;
};

TEST(VirtualGossip, CodesOnAGridOutOfRangeAreNotMixed) {
  VirtualHub cluster(2);
  cluster.run([&](int rank) {
    if (rank == 1) {
      const auto transport = cluster.hub.endpoint(rank);
      Liar liar(*transport);
      transport->start(liar);
      transport->open(0);
      cluster.time->sleep(2s);
      transport->stop();
      EXPECT_TRUE(liar.refused);
      return;
    }
    std::vector<std::string> lines;
    const std::vector<float> mine(kSize, 0.5F);
    const GossipOptions options = options_of("ring", 2, true, Wire::int8);
    Gossiper gossip(cluster, rank, options, {mine},
                    [&](Level, const std::string& line) { lines.push_back(line); });
    cluster.time->sleep(1s);
    gossip->access(0, [&](const Held& held) { EXPECT_TRUE(std::ranges::equal(held.x, mine)); });
    const auto with = gossip->statistics().neighbours[0];
    EXPECT_EQ(std::tuple(with.begun, with.averaged, with.aborted), (std::tuple{1U, 0U, 1U}));
    EXPECT_EQ(lines, std::vector<std::string>{
                         "worker 1 sent block 0 in averaging 2 on a grid out of range: not mixed"});
    cluster.time->sleep(2s);
  });
}

// Late answers, for which no worker waits any more: the averaging is refused, and both ends go on.
TEST(VirtualGossip, LateAnswersAreRefusedOrTaken) {
  GossipOptions options{.rates = pair_rates(make_schedule("complete", 3), 1), .seed = 5, .patience = 300ms};
  options.algorithm = pair_averaging(a2cid2_of(options.rates));
  VirtualHub cluster(3);
  double kept = 0;  // the sum of all (x + x~) / 2, minus the gradients
  cluster.run([&](int rank) {
    std::mt19937_64 random(static_cast<std::uint64_t>(rank));
    std::normal_distribution<float> normal;
    Gossiper gossip(cluster, rank, options);
    const auto train_for = [&](Duration duration, Duration late) {
      int made = 0;
      for (const Time end = cluster.time->now() + duration; cluster.time->now() < end;
           cluster.time->sleep(kGradient)) {
        if (rank == 0) cluster.hub.delay(0, 1, ++made % 5 == 0 ? late : Duration(0));
        gossip->gradient(0, [&](const Held& held) {
          kept -= add_gradient(held, [&](std::size_t) { return normal(random); }).x;
        });
        gossip->stepped();
      }
    };
    train_for(60s, 250ms);  // longer than the time limit of an answer after prompt ones
    const GossipStatistics delayed = gossip->statistics();
    if (rank == 1) {
      EXPECT_GT(delayed.pairing.unanswered, 10U);
    }
    EXPECT_GT(delayed.averaged, 100U);
    train_for(60s, {});
    EXPECT_GT(gossip->statistics().averaged, delayed.averaged + 300);
    gossip->pause();
    // One end of an averaging that took too long may know its outcome before the other.
    cluster.time->sleep(1s);
    gossip->access(0, [&](const Held& held) { kept += kept_sum(held); });
    cluster.time->sleep(1s);
  });
  EXPECT_NEAR(kept, 0, 0.01);
}

// An averaging takes five times the patience for one without progress.
TEST(VirtualGossip, WhatGoesOnIsNotGivenUp) {
  constexpr std::size_t kBlocks = 4, kBlock = 100'000;
  const Schedule complete = make_schedule("complete", 3);
  for (const bool pushes : {false, true}) {
    const GossipOptions options{.rates = pushes ? push_rates(complete, 1) : pair_rates(complete, 1),
                                .algorithm = pushes ? pair_push() : pair_averaging()};
    const double seconds = 5 * std::chrono::duration<double>(options.patience).count();
    VirtualHub cluster(3, kBlocks * kBlock * sizeof(float) / seconds);
    cluster.run([&](int rank) {
      Gossiper gossip(cluster, rank, options,
                      std::vector(kBlocks, std::vector<float>(kBlock, static_cast<float>(rank))),
                      [](Level, const std::string& said) {
                        EXPECT_EQ(said.find("is given up"), std::string::npos) << said;
                      });
      train(cluster, gossip, 1000);
      gossip->pause();
      const GossipStatistics all = gossip->statistics();
      EXPECT_GE(all.averaged, 5U) << pushes;
      // But one that is answered too late, while the answer waits for a chunk, may be refused.
      for (const GossipStatistics::Neighbour& j : all.neighbours)
        EXPECT_EQ(j.aborted, kBlocks * (j.begun - j.averaged)) << "one is under way; pushes: " << pushes;
      cluster.time->sleep(20s);  // the others may not have paused yet
    });
  }
}

// A neighbour stands still in the middle of an averaging, and no worker wants to wait for it.
TEST(VirtualGossip, AWaitForTheLastAveragingIsInterrupted) {
  bool enough = false;
  const GossipOptions options{.rates = pair_rates(make_schedule("complete", 2), 2),
                              .patience = 1h,
                              .interrupted = [&] { return enough; }};
  VirtualHub cluster(2);
  cluster.hub.delay(0, 1, 30ms);  // so that one can be met in flight
  cluster.run([&](int rank) {
    Gossiper gossip(cluster, rank, options);
    const auto under_way = [&] {
      const auto with = gossip->statistics().neighbours[0];
      return with.begun > with.averaged;
    };
    const auto train = [&] {
      cluster.time->sleep(1ms);
      gossip->stepped();
    };
    if (rank == 1) {
      while (!enough) train();
      cluster.time->sleep(1s);
      return;
    }
    do {
      cluster.hub.resume(1);
      train();
      cluster.hub.pause(1);
      cluster.time->sleep(1ms);
    } while (!under_way());
    enough = true;
    gossip->pause();
    EXPECT_TRUE(under_way());
    cluster.hub.resume(1);
    cluster.time->sleep(1s);
  });
}

// Its own transport stands still for longer than the patience with neighbours.
TEST(VirtualGossip, APauseHasBegunWhenItReturns) {
  const GossipOptions options{.rates = pair_rates(make_schedule("complete", 2), 2)};
  const Duration stopped = 10 * options.patience;
  VirtualHub cluster(2);
  cluster.run([&](int rank) {
    Gossiper gossip(cluster, rank, options);
    train(cluster, gossip, 10);
    if (rank == 0) {
      cluster.hub.pause(0);
      cluster.time->sleep(1ms);
      const Time goes_on = cluster.time->now() + stopped;
      cluster.time->at(goes_on, [&] { cluster.hub.resume(0); });
      gossip->pause();
      EXPECT_GE(cluster.time->now(), goes_on);
    }
    cluster.time->sleep(2 * stopped);
  });
}

// The transport's thread has heard neither of the resume() nor of the pause() after it.
TEST(VirtualGossip, APauseRightAfterAnotherHasBegunToo) {
  const GossipOptions options{.rates = pair_rates(make_schedule("complete", 2), 4), .poisson = false};
  VirtualHub cluster(2);
  cluster.run([&](int rank) {
    Gossiper gossip(cluster, rank, options);
    train(cluster, gossip, 10);
    const auto begun = [&] { return gossip->statistics().neighbours[0].begun; };
    if (rank == 0) {
      gossip->pause();
      cluster.time->sleep(kGradient);  // averagings become due
      const std::uint64_t before = begun();
      gossip->resume();
      gossip->pause();
      const std::uint64_t after = begun();
      EXPECT_GT(after, before);
      cluster.time->sleep(1s);
      EXPECT_EQ(begun(), after);
    }
    cluster.time->sleep(5s);
  });
}

// A neighbour tells far numbers of averagings and gradients, and takes part again: the edge goes
// on, and the count of all gradients is right.
TEST(VirtualGossip, FarNumbersAreNotBelieved) {
  const GossipOptions options{.rates = pair_rates(make_schedule("complete", 2), 1), .seed = 5};
  VirtualHub cluster(2);
  const auto lie =
      std::make_shared<const std::vector<std::uint64_t>>(std::vector<std::uint64_t>{0, 1ULL << 32});
  cluster.run([&](int rank) {
    auto over = cluster.hub.endpoint(rank);
    Transport& transport = *over;
    Gossip gossip(std::move(over), options, on_host({std::vector<float>(kSize)}, *options.algorithm),
                  [](Level, const std::string&) {});
    gossip.meet();
    const auto train = [&] {
      for (int k = 0; k < 100; ++k) {
        gossip.gradient(0, [](const Held&) {});
        gossip.stepped();
        cluster.time->sleep(kGradient);
      }
      return gossip.statistics().averaged;
    };
    const std::uint64_t before = train();
    if (rank == 1) {
      transport.send(0, {.type = FrameType::ask, .round = (1ULL << 32) - 2});
      for (const FrameType type : {FrameType::ack, FrameType::answer, FrameType::ask})
        transport.send(0, {.type = type, .round = 2}, {lie, std::as_bytes(std::span(*lie))});
    }
    EXPECT_GT(train(), before + 50) << rank;
    cluster.time->sleep(1s);
    EXPECT_LE(gossip.statistics().gradients_of_all, 400U) << rank;
  });
}

}  // namespace
}  // namespace starling
