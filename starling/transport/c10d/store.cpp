#include "starling/transport/c10d/store.h"

#include <algorithm>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/transport/c10d/one_line.h"

namespace starling {
namespace {

constexpr std::chrono::milliseconds kPause{200};
constexpr std::chrono::milliseconds kPatience{5'000};  // for a host that does not answer

}  // namespace

C10dStore::C10dStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {
  const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store_);
  const auto tcp = c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(
      prefixed ? prefixed->getUnderlyingNonPrefixStore() : store_);
  if (!tcp) return;
  try {
    server_ = resolve_all(tcp->getHost(), tcp->getPort());
  } catch (const Error&) {
    // Only the store's own resolver knows the name.
  }
}

// After a pause it looks for the server first, since torch would say in ten lines that it is gone.
template <class Work>
auto C10dStore::work(const char* what, const std::string& key, Work work) {
  const auto lost = [&](const std::string& why) {
    lost_ = true;
    return StoreLost(fmt::format("store: cannot {} the key '{}': {}", what, key, why));
  };
  if (lost_) throw lost("it has failed before");
  const auto serves = [](const SocketAddress& address) { return somebody_listens(address, kPatience); };
  if (!server_.empty() && Clock::now() - answered_.load() > kPause && std::ranges::none_of(server_, serves))
    throw lost(fmt::format("nobody listens at {} port {}", server_[0].host(), server_[0].port()));
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

}  // namespace starling
