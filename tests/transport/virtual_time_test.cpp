#include "starling/transport/local/virtual_time.h"

#include <chrono>
#include <mutex>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/virtual_workers.h"

namespace starling {
namespace {

using namespace std::chrono_literals;

double milliseconds_of(Time time) { return 1e3 * seconds(time.time_since_epoch()); }

TEST(VirtualTime, ThreadsAndEventsGoInTheOrderOfTime) {
  VirtualTime time(3);
  std::string order;
  const auto say = [&](const std::string& what) {
    order += fmt::format("{} at {}, ", what, milliseconds_of(time.now()));
  };
  virtual_workers(time, 3, [&](int k) {
    say(fmt::format("{}", k));
    time.at(time.now() + 5ms * k, [&, k] { say(fmt::format("event of {}", k)); });
    time.sleep(12ms - 4ms * k);
    say(fmt::format("{}", k));
  });
  EXPECT_EQ(order,
            "0 at 0, 1 at 0, 2 at 0, event of 0 at 0, 2 at 4, event of 1 at 5, 1 at 8, event of 2 at 10, 0 "
            "at 12, ");
}

TEST(VirtualTime, AConditionWakesAtItsNotificationOrItsDeadline) {
  VirtualTime time(2);
  const auto changed = time.condition();
  std::mutex mutex;
  bool there = false;
  virtual_workers(time, 2, [&](int k) {
    std::unique_lock lock(mutex);
    if (k == 0) {
      EXPECT_FALSE(changed->wait_until(lock, time.now() + 3s, [&] { return there; }));
      EXPECT_EQ(milliseconds_of(time.now()), 3000);
      EXPECT_TRUE(changed->wait_until(lock, time.now() + 3s, [&] { return there; }));
      EXPECT_EQ(milliseconds_of(time.now()), 4000) << "what woke it before was of the first wait";
    } else {
      lock.unlock();
      time.at(time.now() + 1s, [&] { changed->notify_all(); });  // in vain
      time.at(time.now() + 4s, [&] {
        const std::lock_guard lock(mutex);
        there = true;
        changed->notify_all();
      });
    }
  });
}

TEST(VirtualTime, RunComesBackWhenItHasRunAfterWhatWasThereBefore) {
  VirtualTime time(1);
  virtual_workers(time, 1, [&](int) {
    int ran = 0;
    time.post([&] { ran = 1; });
    EXPECT_FALSE(time.on_thread());
    time.run([&] {
      EXPECT_TRUE(time.on_thread());
      EXPECT_EQ(ran, 1);
      ran = 2;
    });
    EXPECT_EQ(ran, 2);
  });
}

}  // namespace
}  // namespace starling
