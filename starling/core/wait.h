// Waiting for another thread, which the user can end.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>

#include "starling/core/clock.h"

namespace starling {

// Asked some times a second by whoever waits; yes ends the wait. World::interrupted says more.
using Interrupted = std::function<bool()>;
inline bool nobody() { return false; }

// The answer, asked without the lock: whoever answers may take locks of its own.
inline bool ask(const Interrupted& interrupted, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const bool answer = interrupted();
  lock.lock();
  return answer;
}

// Waits for done(), which is asked with the lock, for `patience` at most by the clock of now(), and until it is interrupted.
// Returns done(). `changed` is a std::condition_variable, or the like.
template <class Condition, class Now, class Done>
bool wait(Condition& changed, std::unique_lock<std::mutex>& lock, const Now& now,
          std::chrono::milliseconds patience, const Interrupted& interrupted, const Done& done) {
  constexpr std::chrono::milliseconds kLook{100};
  const Time end = now() + patience;
  while (!changed.wait_until(lock, std::min<Time>(end, now() + kLook), done)) {
    if (now() >= end) return false;
    if (ask(interrupted, lock)) return done();
  }
  return true;
}

}  // namespace starling
