// A worker of a run to which others come back.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "starling/core/error.h"
#include "tests/optim/flock.h"

namespace starling {

inline World seat_of(const World& world) {
  World seat = world;
  seat.rejoin = true;
  seat.token = "sixteen bytes or more";
  seat.optimizers = std::make_shared<std::atomic<int>>(0);  // of a new process
  return seat;
}

// A store that can be lost, for one worker or for all.
struct LosableStore final : Store {
  explicit LosableStore(std::shared_ptr<Store> store = std::make_shared<MemoryStore>())
      : store(std::move(store)) {}
  std::shared_ptr<Store> there() {
    if (is_lost) throw StoreLost("store: lost");
    const std::lock_guard lock(mutex);
    return store;
  }
  void start_again() {
    const std::lock_guard lock(mutex);
    store = std::make_shared<MemoryStore>();
  }
  void set(const std::string& key, const std::string& value) override { there()->set(key, value); }
  std::optional<std::string> look(const std::string& key) override { return there()->look(key); }
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted) override {
    return there()->get(key, deadline, interrupted);
  }

  std::mutex mutex;
  std::shared_ptr<Store> store;
  std::atomic<bool> is_lost = false;
};

}  // namespace starling
