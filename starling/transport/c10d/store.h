// The workers' store on any store of c10d: TCPStore or FileStore between processes, HashStore
// between threads.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "starling/core/clock.h"
#include "starling/world/store.h"

namespace starling {

// Once an operation has failed the store is lost for good: torch's stores do not connect again, and
// TCPStore writes a stack trace to stderr each time.
class C10dStore final : public Store {
 public:
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store);

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted = nobody) override;
  // The key's value, if it is set. Does not wait. Throws StoreLost.
  std::optional<std::string> look(const std::string& key);

  // Another store on the same keys, each behind `prefix`. Calls that wait in it block no other
  // store.
  c10::intrusive_ptr<c10d::Store> clone(const std::string& prefix) const;

 private:
  template <class Work>
  auto work(const char* what, const std::string& key, Work work);

  c10::intrusive_ptr<c10d::Store> store_;
  std::function<std::string()> gone_;  // why the store is gone, or ""
  std::atomic<Time> answered_ = Clock::now();
  std::atomic<bool> lost_ = false;
};

// The store behind all prefixes.
c10::intrusive_ptr<c10d::Store> without_prefix(const c10::intrusive_ptr<c10d::Store>& store);

// A store in a file, which need not exist yet. Throws UsageError if others can enter its folder.
c10::intrusive_ptr<c10d::Store> file_store(const std::string& path);

}  // namespace starling
