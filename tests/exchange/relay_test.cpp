// The exchange through a relay, which changes the stream without the token.
#include "tests/transport/relay.h"

#include <gmock/gmock.h>

#include "tests/exchange/flock.h"
#include "tests/loopback.h"

namespace starling {
namespace {

TEST(Exchange, WhatARelayDoesToFramesIsNotMixedAndTheSumIsConserved) {
  const Schedule schedule = make_schedule("one-peer-ring", 2);
  World world = loopback_world(2);
  const auto worker = [&](int rank) {
    world.rank = rank;
    return std::make_unique<Worker>(make_tcp_transport(world, "test"), schedule, Patience{}, Wire::fp32);
  };
  const auto zero = worker(0);
  Relay relay(world, "test");
  const auto one = worker(1);
  const auto both = [&](auto&& f) {
    std::thread other([&] { f(*one); });
    f(*zero);
    other.join();
  };
  // Steps of both, until one mixes all four blocks.
  const auto is_whole_again = [&] { return eventually([&] { return zero->step() + one->step() == 4; }); };
  both([](Worker& w) { w.begin(); });
  const double before = zero->sum() + one->sum();
  std::uint64_t aborted = 0;
  for (const Attack attack : kAttacks) {
    for (const auto towards : {Relay::Towards::acceptor, Relay::Towards::dialer}) {
      SCOPED_TRACE(testing::Message() << static_cast<int>(attack) << " " << static_cast<int>(towards));
      ASSERT_TRUE(is_whole_again());
      relay.attack(attack, towards);
      ASSERT_TRUE(eventually([&] { return zero->step(), one->step(), relay.has_attacked(towards); }));
      ASSERT_TRUE(is_whole_again());
      const std::uint64_t now = zero->exchange.statistics().aborted + one->exchange.statistics().aborted;
      EXPECT_GT(now, aborted);
      aborted = now;
    }
  }
  both([](Worker& w) { w.end(); });
  EXPECT_NEAR(zero->sum() + one->sum(), before, 1e-2);
  for (const auto& w : {zero.get(), one.get()}) {
    for (const auto& block : w->x) {
      for (const float value : block) ASSERT_LT(std::abs(value), 10);
    }
  }
}

}  // namespace
}  // namespace starling
