#include "starling/transport/c10d/store.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/transport/c10d/one_line.h"
#include "starling/transport/c10d/private_folder.h"
#include "starling/transport/c10d/socket.h"
#include "starling/world/environment.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kPause{200};
constexpr std::chrono::milliseconds kPatience{5'000};  // for a host that does not answer

std::string gone_server(const std::vector<SocketAddress>& server) {
  const auto serves = [](const SocketAddress& address) { return somebody_listens(address, kPatience); };
  if (server.empty() || std::ranges::any_of(server, serves)) return "";
  return fmt::format("nobody listens at {} port {}", server[0].host(), server[0].port());
}

std::function<std::string()> gone(const c10::intrusive_ptr<c10d::Store>& store) {
  if (auto* const file = dynamic_cast<c10d::FileStore*>(store.get())) {
    return [path = file->getPath()] {
      return std::filesystem::exists(path) ? std::string()
                                           : fmt::format("the file {} is gone", in_quotes(path));
    };
  }
  if (auto* const tcp = dynamic_cast<c10d::TCPStore*>(store.get())) {
    try {
      return std::bind_front(gone_server, resolve_all(tcp->getHost(), tcp->getPort()));
    } catch (const Error&) {
      // Only the store's own resolver knows the name.
    }
  }
  return [] { return std::string(); };
}

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {
  gone_ = gone(without_prefix(store_));
}

// After a pause it looks for the server first, since torch would say in ten lines that it is gone.
template <class Work>
auto C10dStore::work(const char* what, const std::string& key, Work work) {
  const auto lost = [&](const std::string& why) {
    lost_ = true;
    return StoreLost(fmt::format("store: cannot {} the key '{}': {}", what, key, why));
  };
  if (lost_) throw lost("it has failed before");
  if (Clock::now() - answered_.load() > kPause) {
    if (const std::string why = gone_(); !why.empty()) throw lost(why);
  }
  try {
    auto result = work();
    answered_ = Clock::now();
    return result;
  } catch (const std::exception& failure) {
    throw lost(one_line(failure));
  }
}

void C10dStore::set(const std::string& key, const std::string& value) {
  work("set", key, [&] {
    store_->set(key, std::vector<std::uint8_t>(value.begin(), value.end()));
    return store_->check({key});  // TCPStore does not wait for an answer to set()
  });
}

std::optional<std::string> C10dStore::look(const std::string& key) {
  return work("get", key, [&]() -> std::optional<std::string> {
    if (!store_->check({key})) return std::nullopt;
    const std::vector<std::uint8_t> value = store_->get(key);
    return std::string(value.begin(), value.end());
  });
}

// Polls instead of waiting in the store: TCPStore's wait() holds its only connection. One waiting
// thread would then keep all others from setting the key that it waits for.
std::string C10dStore::get(const std::string& key, std::chrono::milliseconds deadline,
                           const Interrupted& interrupted) {
  const Time end = Clock::now() + deadline;
  Duration pause = std::chrono::milliseconds(1);
  for (;;) {
    if (const auto value = look(key)) return *value;
    const Duration left = end - Clock::now();
    if (left <= Duration::zero()) {
      throw Error(
          fmt::format("store: nobody has set the key '{}' within {} ms: check that all workers were started "
                      "and that none of them has ended",
                      key, deadline.count()));
    }
    if (interrupted()) throw Error(fmt::format("store: interrupted while nobody had set the key '{}'", key));
    std::this_thread::sleep_for(std::min(pause, left));
    pause = std::min<Duration>(2 * pause, std::chrono::milliseconds(50));
  }
}

c10::intrusive_ptr<c10d::Store> C10dStore::clone(const std::string& prefix) const {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store_->clone());
}

// No dynamic_intrusive_pointer_cast: when it fails, it keeps the store alive for ever.
c10::intrusive_ptr<c10d::Store> without_prefix(const c10::intrusive_ptr<c10d::Store>& store) {
  auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(store.get());
  return prefixed ? prefixed->getUnderlyingNonPrefixStore() : store;
}

c10::intrusive_ptr<c10d::Store> file_store(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!is_private(folder))
    throw UsageError(fmt::format("{}={}: the folder {} must be yours, and closed to others: chmod 700 it",
                                 kStoreFile, in_quotes(path), in_quotes(folder.string())));
  auto store = c10::make_intrusive<c10d::FileStore>(path, -1);  // -1: no worker's end removes the file
  store->setTimeout(kPatience);
  return store;
}

}  // namespace starling
