// The workers' store on any store of c10d: TCPStore or FileStore between processes, HashStore
// between threads.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "starling/core/clock.h"
#include "starling/world/store.h"

namespace starling {

// Once an operation has failed the store is lost: every operation throws at once. After a second it
// is asked again, over a new connection: torch's stores do not connect again themselves.
class C10dStore final : public Store {
 public:
  static constexpr std::chrono::milliseconds kPatience{5'000};

  // Every operation takes at most twice the `patience`; then the store is lost. torch's stores have
  // no limit if the host does not answer, or a stopped process holds the lock of the file.
  //
  // host_again: hosts the store in this process, after nobody has done so for the `patience`. It is
  // empty then. Throws Error if it cannot.
  using HostAgain = std::function<c10::intrusive_ptr<c10d::Store>()>;
  explicit C10dStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds patience = kPatience,
                     HostAgain host_again = nullptr);
  ~C10dStore() override;

  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> look(const std::string& key) override { return look(key, patience_, nobody); }
  std::string get(const std::string& key, std::chrono::milliseconds deadline,
                  const Interrupted& interrupted = nobody) override;

  // Another store on the same keys, each behind `prefix`. Calls that wait in it block no other
  // store. Takes a connection of its own. Throws StoreLost.
  c10::intrusive_ptr<c10d::Store> clone(const std::string& prefix);

 private:
  std::optional<std::string> look(const std::string& key, Duration patience, const Interrupted& interrupted);
  // work(store) on a thread of its own. It is left behind if it does not end, so it owns its data.
  template <class Work>
  auto work(const std::string& what, Duration patience, const Interrupted& interrupted, Work work);

  // The given store, or a later connection with it.
  struct Connection {
    c10::intrusive_ptr<c10d::Store> store;
    int number = 0;
  };
  Connection connection();
  void join_again(const std::string& what);
  std::string why_gone();
  void is_lost(int connection, const std::string& why);
  void release(c10::intrusive_ptr<c10d::Store> store) const;

  const std::chrono::milliseconds patience_;
  const HostAgain host_again_;
  c10::intrusive_ptr<c10d::Store> hosted_;  // by host_again_: the server lives as long as this
  c10::intrusive_ptr<c10d::Store> given_;   // perhaps the server: it lives as long as this
  std::string place_;                       // "the store at 192.0.2.1 port 29500"
  std::atomic<Time> answered_ = Clock::now();

  std::mutex mutex_;                   // of the following
  std::function<std::string()> gone_;  // why the store is gone, or ""
  Connection connection_;
  std::string lost_;  // why, if it is
  Time lost_since_{};
  Time ask_again_{};
  std::weak_ptr<void> attempt_;  // to connect again, while it runs: perhaps left behind
};

// The store behind all prefixes.
c10::intrusive_ptr<c10d::Store> without_prefix(const c10::intrusive_ptr<c10d::Store>& store);

// A store in a file, which need not exist yet. Throws Error if the file stays locked. A process
// that is killed while it sets a key can leave the store unreadable for all.
c10::intrusive_ptr<c10d::Store> file_store(const std::string& path);

}  // namespace starling
