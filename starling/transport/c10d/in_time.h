// Calls of torch that wait without a limit, or for longer than they were asked to.
#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <stdexcept>
#include <thread>
#include <utility>

#include "starling/core/clock.h"

namespace starling {

class Overdue final : public std::runtime_error {
 public:
  Overdue() : std::runtime_error("it has not answered in time") {}
};

// Throws Overdue once the time has passed.
struct Limit {
  Duration time;
  Time begin = Clock::now();
  void operator()() const {
    if (Clock::now() - begin >= time) throw Overdue();
  }
};

// Returns what make() returns, which runs on a thread of its own. Meanwhile look() is called again
// and again, and may throw: then the thread is left behind. So make() must own all that it uses.
template <class Make, class Look>
auto in_time(Make make, const Look& look) {
  std::promise<decltype(make())> promise;
  auto made = promise.get_future();
  std::thread([make = std::move(make), promise = std::move(promise)]() mutable {
    try {
      promise.set_value(make());
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  while (made.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready) look();
  return made.get();
}

}  // namespace starling
