// Waits for another thread. The user can interrupt the wait.
#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>

#include "starling/core/clock.h"

namespace starling {

// A waiting thread calls this several times a second; true ends the wait. World::interrupted says
// more.
using Interrupted = std::function<bool()>;
inline bool nobody() { return false; }

// Calls it without the lock, because the callee may take locks of its own.
inline bool ask(const Interrupted& interrupted, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const bool answer = interrupted();
  lock.lock();
  return answer;
}

// Waits until done() is true, for at most `patience` by the clock of now(), or until interrupted.
// Calls done() with the lock held, and returns its result. `changed` is a std::condition_variable
// or similar.
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
