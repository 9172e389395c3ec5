// The meeting point of the training thread and the transport's: the lock of what both touch, and
// the word that it has changed.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "starling/core/wait.h"
#include "starling/transport/transport.h"

namespace starling {

struct Monitor {
  Monitor(const Transport& transport, Interrupted interrupted)
      : changed(transport.condition()),
        transport(transport),
        began(transport.now()),
        interrupted(std::move(interrupted)) {}

  // Returns a copy of what f() returns, which is called with the lock.
  template <class Function>
  auto locked(const Function& f) const {
    const std::lock_guard lock(mutex);
    return f();
  }
  // On the training thread: core/wait.h.
  template <class Done>
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience, const Done& done) {
    return starling::wait(*changed, lock, [this] { return transport.now(); }, patience, interrupted, done);
  }
  bool is_interrupted(std::unique_lock<std::mutex>& lock) const { return ask(interrupted, lock); }
  // The most rounds, averagings or gradients that any worker can have made since this one began:
  // none takes less than a microsecond. A peer that claims more is not believed.
  std::uint64_t countable() const {
    return static_cast<std::uint64_t>((transport.now() - began) / std::chrono::microseconds(1));
  }

  mutable std::mutex mutex;
  const std::unique_ptr<Condition> changed;

 private:
  const Transport& transport;
  const Time began;
  const Interrupted interrupted;
};

}  // namespace starling
