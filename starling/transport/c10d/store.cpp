#include "starling/transport/c10d/store.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/core/with_lock.h"
#include "starling/transport/c10d/in_time.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/transport/c10d/socket.h"
#include "starling/world/ask_again.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kPause{200};

struct Failed final : std::runtime_error {
  explicit Failed(const std::string& why) : std::runtime_error(why), why(why) {}
  std::string why;
};

// work(store), for in_time(). It has let go of the store when the caller goes on.
template <class Work>
struct Owned {
  c10::intrusive_ptr<c10d::Store> store;
  Work work;
  auto operator()() {
    const auto held = std::exchange(store, nullptr);
    try {
      return work(*held);
    } catch (const std::exception& failure) {
      throw Failed(one_line(failure));
    }
  }
};
template <class Work>
Owned(c10::intrusive_ptr<c10d::Store>, Work) -> Owned<Work>;

std::string place_of(const c10::intrusive_ptr<c10d::Store>& store) {
  if (auto* const file = dynamic_cast<c10d::FileStore*>(store.get()))
    return fmt::format("the store in the file {}", in_quotes(file->getPath()));
  if (auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get()))
    return fmt::format("the store at {} port {}", tcp->getHost(), tcp->getPort());
  return "the store";
}

std::string gone_server(const std::vector<SocketAddress>& server) {
  const auto serves = [](const SocketAddress& address) {
    return somebody_listens(address, C10dStore::kPatience);
  };
  try {
    if (server.empty() || std::ranges::any_of(server, serves)) return "";
  } catch (const Error& failure) {  // this process has no descriptor left to look with
    return failure.what();
  }
  return fmt::format("nobody listens at {} port {}", server[0].host(), server[0].port());
}

// Says why a TCPStore's server is gone from all addresses that its name has now.
std::function<std::string()> gone_from(const std::string& host, int port) {
  try {
    return std::bind_front(gone_server, resolve_all(host, port));
  } catch (const Error&) {
    return [] { return std::string(); };  // only the store's own resolver knows the name
  }
}

std::function<std::string()> gone(const c10::intrusive_ptr<c10d::Store>& store) {
  if (auto* const file = dynamic_cast<c10d::FileStore*>(store.get())) {
    return [path = file->getPath()] {
      std::error_code unknown;
      const bool is_gone = !std::filesystem::exists(path, unknown) && !unknown;
      return is_gone ? fmt::format("the file {} is gone", in_quotes(path)) : std::string();
    };
  }
  if (auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get()))
    return gone_from(tcp->getHost(), tcp->getPort());
  return [] { return std::string(); };
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store, std::chrono::milliseconds patience,
                     HostAgain host_again)
    : patience_(patience), host_again_(std::move(host_again)), given_(std::move(store)), connection_{given_} {
  const auto whole = without_prefix(given_);
  place_ = place_of(whole);
  gone_ = gone(whole);
}

C10dStore::~C10dStore() {
  release(std::move(connection_.store));
  release(std::move(given_));
}

// FileStore's destructor takes the lock of the file.
void C10dStore::release(c10::intrusive_ptr<c10d::Store> store) const {
  if (!dynamic_cast<c10d::FileStore*>(without_prefix(store).get())) return;
  try {
    in_time(Owned{std::move(store), [](c10d::Store&) { return true; }}, Limit{patience_});
  } catch (const std::exception&) {
    // Its thread goes on waiting.
  }
}

C10dStore::Connection C10dStore::connection() {
  const std::lock_guard lock(mutex_);
  return connection_;
}

std::string C10dStore::why_gone() {
  return with_lock(mutex_, [this] { return gone_; })();
}

void C10dStore::is_lost(int connection, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (connection != connection_.number) return;  // there is a new one
  if (lost_.empty()) lost_since_ = Clock::now();
  lost_ = why;
  ask_again_ = Clock::now() + kAskStoreAgain;
}

// Another connection with a store that was lost. Throws StoreLost if it is too soon.
void C10dStore::join_again(const std::string& what) {
  std::unique_lock lock(mutex_);
  if (lost_.empty()) return;
  if (Clock::now() < ask_again_ || !attempt_.expired())
    throw StoreLost(fmt::format("store: cannot {}: {}", what, lost_));
  auto attempt = std::make_shared<int>();
  attempt_ = attempt;
  const bool is_long_ago = Clock::now() - lost_since_ >= patience_;
  lock.unlock();
  if (auto* const tcp = dynamic_cast<c10d::TCPStore*>(without_prefix(given_).get())) {
    // The name may be another host's by now, on which the store was started again.
    auto there = in_time([host = tcp->getHost(), port = tcp->getPort()] { return gone_from(host, port); },
                         Limit{patience_});
    lock.lock();
    gone_ = std::move(there);
    lock.unlock();
  }
  if (const std::string why = why_gone(); !why.empty()) {
    if (!host_again_ || !is_long_ago) throw Failed(why);
    try {
      hosted_ = host_again_();
    } catch (const Error& failure) {  // another worker of this host may have been faster
      throw Failed(fmt::format("{}, and {}", why, failure.what()));
    }
  }
  auto fresh =
      in_time(Owned{given_, [attempt = std::move(attempt)](c10d::Store& before) { return before.clone(); }},
              Limit{patience_});
  lock.lock();
  ++connection_.number;
  std::swap(connection_.store, fresh);
  lost_.clear();
  lock.unlock();
  answered_ = Clock::now();
  release(std::move(fresh));
}

template <class Work>
auto C10dStore::work(const std::string& what, Duration patience, const Interrupted& interrupted, Work work) {
  std::string why;
  int number = connection().number;
  try {
    join_again(what);
    // After a pause it looks for the server first: torch would say in ten lines that it is gone.
    if (Clock::now() - answered_.load() > kPause) {
      if (std::string none = why_gone(); !none.empty()) throw Failed(none);
    }
    Connection present = connection();
    number = present.number;
    auto result = in_time(Owned{std::move(present.store), std::move(work)}, [&, limit = Limit{patience}] {
      limit();
      if (interrupted()) throw Error(fmt::format("store: interrupted, could not {}", what));
    });
    answered_ = Clock::now();
    return result;
  } catch (const Overdue&) {
    why = fmt::format("{} has not answered within {:g} s", place_, seconds(patience));
  } catch (const Failed& failure) {
    why = failure.why;
  } catch (const std::system_error& failure) {  // it has no thread left either
    why = failure.what();
  }
  is_lost(number, why);
  throw StoreLost(fmt::format("store: cannot {}: {}", what, why));
}

void C10dStore::set(const std::string& key, const std::string& value) {
  work(fmt::format("set the key '{}'", key), patience_, nobody,
       [key, bytes = std::vector<std::uint8_t>(value.begin(), value.end())](c10d::Store& store) {
         store.set(key, bytes);
         return store.check({key});  // TCPStore does not wait for an answer to set()
       });
}

std::optional<std::string> C10dStore::look(const std::string& key, Duration patience,
                                           const Interrupted& interrupted) {
  return work(fmt::format("get the key '{}'", key), patience, interrupted,
              [key](c10d::Store& store) -> std::optional<std::string> {
                if (!store.check({key})) return std::nullopt;
                const std::vector<std::uint8_t> value = store.get(key);
                return std::string(value.begin(), value.end());
              });
}

// Polls instead of waiting in the store: TCPStore's wait() holds its only connection. One waiting
// thread would then keep all others from setting the key that it waits for.
std::string C10dStore::get(const std::string& key, std::chrono::milliseconds deadline,
                           const Interrupted& interrupted) {
  return get_by_asking(key, deadline, interrupted, place_, [&](Duration left) {
    return look(key, std::max<Duration>(left, patience_), interrupted);
  });
}

c10::intrusive_ptr<c10d::Store> C10dStore::clone(const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(
      prefix, work("join it again", patience_, nobody, [](c10d::Store& store) { return store.clone(); }));
}

// No dynamic_intrusive_pointer_cast: when it fails, it keeps the store alive for ever.
c10::intrusive_ptr<c10d::Store> without_prefix(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

c10::intrusive_ptr<c10d::Store> file_store(const std::string& path) {
  const auto make = [path]() -> c10::intrusive_ptr<c10d::Store> {
    auto store = c10::make_intrusive<c10d::FileStore>(path, -1);  // -1: no worker's end removes the file
    store->setTimeout(C10dStore::kPatience);
    return store;
  };
  try {
    return in_time(make, Limit{C10dStore::kPatience});
  } catch (const std::exception& failure) {
    throw Error(fmt::format("cannot join the store in the file {}: {}", in_quotes(path),
                            dynamic_cast<const Overdue*>(&failure)
                                ? fmt::format("it has been locked for {:g} s: is a worker stopped?",
                                              seconds(C10dStore::kPatience))
                                : one_line(failure)));
  }
}

}  // namespace starling
