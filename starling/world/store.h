// The key-value store at which workers meet. The launcher hosts it. It serves start-up and joining,
// never a step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/wait.h"

namespace starling {

// The store itself has failed: its host is gone, or does not answer.
class StoreLost : public Error {
 public:
  using Error::Error;
};

class Store {
 public:
  virtual ~Store() = default;
  // After it returns, every get() finds the value. Throws StoreLost.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // The key's value, if it is set. Does not wait. Throws StoreLost.
  virtual std::optional<std::string> look(const std::string& key) = 0;
  // Waits until a worker has set the key. Throws Error, naming the key, after `deadline` or when
  // interrupted; and StoreLost.
  virtual std::string get(const std::string& key, std::chrono::milliseconds deadline,
                          const Interrupted& interrupted = nobody) = 0;
};

// Store::get() for a store that can only be asked: asks again and again. Errors name the `place`.
std::string get_by_asking(const std::string& key, std::chrono::milliseconds deadline,
                          const Interrupted& interrupted, const std::string& place,
                          const std::function<std::optional<std::string>(Duration left)>& look);

// For workers that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> look(const std::string& key) override;
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted = nobody) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace starling
