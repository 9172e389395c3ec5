#include "starling/transport/c10d/store.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/transport/c10d/one_line.h"

namespace starling {

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

void C10dStore::set(const std::string& key, const std::string& value) {
  try {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    store_->check({key});  // TCPStore does not wait for an answer to set()
  } catch (const std::exception& failure) {
    throw StoreLost(fmt::format("store: cannot set the key '{}': {}", key, one_line(failure)));
  }
}

// Polls instead of waiting in the store: TCPStore's wait() holds its only connection. One waiting
// thread would then keep all others from setting the key that it waits for.
std::string C10dStore::get(const std::string& key, std::chrono::milliseconds deadline,
                           const Interrupted& interrupted) {
  const Time end = Clock::now() + deadline;
  Duration pause = std::chrono::milliseconds(1);
  try {
    while (!store_->check({key})) {
      const Duration left = end - Clock::now();
      if (left <= Duration::zero()) {
        throw Error(fmt::format(
            "store: nobody has set the key '{}' within {} ms: check that all workers were started "
            "and that none of them has ended",
            key, deadline.count()));
      }
      if (interrupted())
        throw Error(fmt::format("store: interrupted while nobody had set the key '{}'", key));
      std::this_thread::sleep_for(std::min(pause, left));
      pause = std::min<Duration>(2 * pause, std::chrono::milliseconds(50));
    }
    const std::vector<std::uint8_t> value = store_->get(key);
    return {value.begin(), value.end()};
  } catch (const Error&) {
    throw;
  } catch (const std::exception& failure) {
    throw StoreLost(fmt::format("store: cannot get the key '{}': {}", key, one_line(failure)));
  }
}

c10::intrusive_ptr<c10d::Store> C10dStore::clone(const std::string& prefix) const {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store_->clone());
}

}  // namespace starling
