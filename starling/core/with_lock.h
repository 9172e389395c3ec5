#pragma once

#include <mutex>

namespace starling {

// Returns a copy of what f() returns, which is called with the lock.
template <class F>
auto with_lock(std::mutex& mutex, const F& f) {
  const std::lock_guard lock(mutex);
  return f();
}

}  // namespace starling
