// Rounds in which three or more take their mean: bytes, exactness, and the cost of one member's
// fault for the others.
#include <atomic>
#include <cstring>
#include <limits>

#include <gmock/gmock.h>

#include "tests/exchange/flock.h"

namespace starling {
namespace {

// In a group's round a step mixes one arrival per block, in pairs one per neighbour and block.
constexpr int kMeans = 2;

TEST(GroupExchange, AWorkerSends2MTimesGMinus1OverG) {
  for (const int g : {3, 4, 5, 8}) {
    Flock flock("complete", g);
    constexpr int kSteps = 20;  // one round more or less may be in flight: within the allowed tenth
    const std::uint64_t before = flock[0].exchange.statistics().payload_sent;
    flock.everyone([](Worker& w) {
      for (int t = 0; t < kSteps; ++t) EXPECT_EQ(w.step(), kMeans);
    });
    const double sent = static_cast<double>(flock[0].exchange.statistics().payload_sent - before);
    const double model = 2.0 * Worker::size * sizeof(float);
    EXPECT_NEAR(sent / (kSteps * model), 2.0 * (g - 1) / g, 0.1 * 2 * (g - 1) / g) << "g " << g;
    EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
    EXPECT_EQ(flock[0].exchange.statistics().skipped_rounds, 0U);
  }
}

TEST(GroupExchange, OneRoundIsTheMeanAndWhatAllAgreeOnStaysToTheBit) {
  for (const int g : {3, 4, 7}) {
    Flock flock("complete", g);
    std::vector<double> mean(Worker::size);
    for (int i = 0; i < g; ++i) {
      for (std::size_t k = 0; k < mean.size(); ++k) mean[k] += flock[i].x[1][k] / static_cast<double>(g);
    }
    flock.everyone([](Worker& w) { w.step(); });
    for (int i = 0; i < g; ++i) {
      for (std::size_t k = 0; k < mean.size(); ++k) ASSERT_NEAR(flock[i].x[1][k], mean[k], 1e-6) << i;
    }
    const std::vector<float> agreed = flock[0].x[1];
    for (int i = 0; i < g; ++i) flock[i].x[1] = agreed;
    flock.everyone([](Worker& w) {
      w.exchange.restart(0);
      w.write(0), w.write(1);
      w.step();
    });
    for (int i = 0; i < g; ++i) EXPECT_EQ(flock[i].x[1], agreed);
  }
}

TEST(GroupExchange, BlocksWithFewerFloatsThanMembers) {
  LocalHub hub(5);
  const std::vector<std::size_t> sizes{1, 2, 7};
  on_threads(5, [&](int rank) {
    Exchange exchange(hub.endpoint(rank), make_schedule("complete", 5), sizes, {});
    exchange.meet();
    std::vector<float> x(7, static_cast<float>(rank));
    for (int b = 0; b < 3; ++b) {
      kernels::update(kernels::SgdStep{}, {}, x.data(), nullptr, {}, exchange.outgoing(b),
                      sizes[static_cast<std::size_t>(b)]);
      exchange.start(b, true);
    }
    for (int b = 0; b < 3; ++b) {
      const auto arrived = exchange.finish(b);
      ASSERT_EQ(arrived.size(), 1U);
      const auto bytes = arrived[0].theirs.bytes();
      for (std::size_t at = 0; at < bytes.size(); at += sizeof(float)) {
        float value = 0;
        std::memcpy(&value, bytes.data() + at, sizeof value);
        EXPECT_NEAR(value, 2, 1e-6) << "block " << b;
      }
    }
  });
}

// The slack of one step, like that of an edge: all members on ONE thread.
TEST(GroupExchange, AWorkerFinishesAStepWhileTheOthersAreInTheMiddleOfIt) {
  Flock flock("complete", 4);
  for (int t = 0; t < 8; ++t) {
    for (int i = 0; i < 4; ++i) EXPECT_EQ(flock[(i + t) % 4].step(), kMeans);
  }
  EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
}

TEST(GroupExchange, GroupsAndPairsAlternate) {
  for (const char* name : {"base-3", "base-4", "alternating-exp-ring", "hyper-hypercube-3"}) {
    const int n = 6;
    Flock flock(make_schedule(name, n, 3));
    const double before = flock.sum();
    flock.everyone([](Worker& w) {
      for (int t = 0; t < 12; ++t) w.step();
    });
    EXPECT_NEAR(flock.sum(), before, 2e-2) << name;
    EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U) << name;
  }
}

TEST(GroupExchange, ADamagedShardSendsTheGroupIntoPairsForThatRound) {
  for (const auto& [from, to] : {std::pair{1, 0}, std::pair{0, 2}}) {
    Flock flock("complete", 3);
    const double before = flock.sum();
    flock.everyone([](Worker& w) { w.step(); });
    flock.hub.corrupt_next(from, to);
    // One block from both others instead of the mean.
    EXPECT_THAT(flock.steps(4), testing::Each(4 * kMeans + 1));
    EXPECT_NEAR(flock.sum(), before, 1e-2);
    EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
    ASSERT_FALSE(flock[to].said().empty());
    EXPECT_NE(flock[to].said()[0].find("sent a damaged block"), std::string::npos) << flock[to].said()[0];
  }
}

TEST(GroupExchange, ADeadMemberCostsTheOthersNothing) {
  Flock flock("complete", 4);
  flock.everyone([](Worker& w) { w.step(); });
  flock.hub.kill(3);
  for (int i = 0; i < 3; ++i) flock[i].step();
  for (int t = 0; t < 5; ++t) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(flock[i].step(), 4);  // two blocks from two neighbours
  }
  ASSERT_EQ(flock[0].said().size(), 1U);
  EXPECT_NE(flock[0].said()[0].find("worker 3 is gone"), std::string::npos);
}

TEST(GroupExchange, NumbersThatAreNotFiniteKeepTheirOwnerOutOnly) {
  Flock flock("complete", 3);
  flock.everyone([](Worker& w) { w.step(); });
  flock[1].x[0][5] = std::numeric_limits<float>::quiet_NaN();
  flock.steps(2);
  // At workers 0 and 2 block 0 of the other, and the mean of block 1.
  EXPECT_EQ(flock.steps(1), (std::vector{2, 1, 2}));
  for (const auto& block : flock[0].x) {
    for (const float value : block) ASSERT_TRUE(std::isfinite(value));
  }
}

TEST(GroupExchange, WithMaxWaitTheOthersGoOnInPairsAndTheSleeperIsBackWhenItWakes) {
  Flock flock("complete", 3, {.max_wait = milliseconds(2000)});
  const double before = flock.sum();
  flock.everyone([](Worker& w) { w.step(); });
  // Two blocks of one neighbour, except those in flight.
  EXPECT_GE(flock.steps_while_2_sleeps(), 36);
  std::atomic<bool> stop = false;
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back([&, i] {
      while (!stop) flock[i].step();
    });
  }
  flock[2].step();
  const std::uint64_t slept = flock[2].exchange.statistics().committed;
  ASSERT_TRUE(eventually([&] {
    flock[2].step();
    return flock[2].exchange.statistics().committed >=
           slept + 40;  // ten rounds of two blocks from two neighbours
  }));
  stop = true;
  for (auto& other : others) other.join();
  flock.everyone([](Worker& w) { w.end(); });
  EXPECT_GT(flock[2].exchange.statistics().skipped_rounds, 10U);
  EXPECT_NEAR(flock.sum(), before, 1e-2);
  EXPECT_THAT(flock[0].said(), testing::Contains(testing::HasSubstr("worker 2 is late")));
}

}  // namespace
}  // namespace starling
