// The key-value store at which workers meet: the launcher's, used at start-up and to join, never per step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "starling/core/wait.h"

namespace starling {

class Store {
 public:
  virtual ~Store() = default;
  // When it returns, whoever asks finds the value. Throws Error.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until somebody has set the key. Throws Error, naming the key, once `deadline` has passed or it is interrupted.
  virtual std::string get(const std::string& key, std::chrono::milliseconds deadline,
                          const Interrupted& interrupted = nobody) = 0;
};

// For workers that are threads of one process.
class MemoryStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted = nobody) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace starling
