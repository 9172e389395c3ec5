// The meeting point of the training thread and the transport's: the lock of what both touch, and
// the word that it has changed.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>

#include "starling/core/wait.h"
#include "starling/transport/transport.h"

namespace starling {

struct Monitor {
  Monitor(const Transport& transport, Interrupted interrupted)
      : changed(transport.condition()), transport(transport), interrupted(std::move(interrupted)) {}

  // On the training thread: core/wait.h.
  template <class Done>
  bool wait(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience, const Done& done) {
    return starling::wait(*changed, lock, [this] { return transport.now(); }, patience, interrupted, done);
  }
  bool is_interrupted(std::unique_lock<std::mutex>& lock) const { return ask(interrupted, lock); }

  mutable std::mutex mutex;
  const std::unique_ptr<Condition> changed;

 private:
  const Transport& transport;
  const Interrupted interrupted;
};

}  // namespace starling
