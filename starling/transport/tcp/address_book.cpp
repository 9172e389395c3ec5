#include "starling/transport/tcp/address_book.h"

#include <charconv>
#include <chrono>
#include <optional>
#include <utility>
#include <vector>

#include "starling/core/error.h"
#include "starling/transport/tcp/local_end.h"
#include "starling/transport/tcp/tcp.h"

namespace starling::tcp {
namespace {

// How long one question may hold up the next, and the others who want the store.
constexpr auto kQuestion = std::chrono::milliseconds(100);
constexpr auto kLongestPause = std::chrono::milliseconds(1000);

// "host:port", as to_string() writes it.
std::optional<Tcp::endpoint> parse(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  asio::error_code error;
  const auto address = asio::ip::make_address(host, error);
  std::uint16_t port = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, bad] = std::from_chars(text.data() + colon + 1, end, port);
  if (error || bad != std::errc{} || rest != end || port == 0) return std::nullopt;
  return Tcp::endpoint(address, port);
}

}  // namespace

AddressBook::AddressBook(const Identity& identity, std::shared_ptr<Store> store, Found found)
    : identity_(identity), store_(std::move(store)), found_(std::move(found)) {
  for (int peer = 0; peer < identity_.size; ++peer) {
    if (peer != identity_.rank) missing_.insert(peer);
  }
}

AddressBook::~AddressBook() { stop(); }

void AddressBook::publish(const Tcp::endpoint& own) {
  store_->set(tcp_address_key(identity_.channel, identity_.rank), to_string(own));
}

void AddressBook::start() {
  thread_ = std::thread([this] { run(); });
}

void AddressBook::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void AddressBook::refresh(int peer) {
  {
    const std::lock_guard lock(mutex_);
    missing_.insert(peer);
  }
  changed_.notify_all();
}

void AddressBook::run() {
  auto pause = std::chrono::milliseconds(10);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    bool any = false;
    for (const int peer : std::vector<int>(missing_.begin(), missing_.end())) {
      if (stopping_) return;
      missing_.erase(peer);
      lock.unlock();
      const bool there = look_up(peer);
      lock.lock();
      any |= there;
      if (!there) missing_.insert(peer);
    }
    if (missing_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !missing_.empty(); });
    } else {
      pause = any ? std::chrono::milliseconds(10) : std::min(2 * pause, kLongestPause);
      changed_.wait_for(lock, pause, [&] { return stopping_; });
    }
  }
}

bool AddressBook::look_up(int peer) {
  try {
    const auto address = parse(store_->get(tcp_address_key(identity_.channel, peer), kQuestion));
    if (address) found_(peer, *address);
    return address.has_value();
  } catch (const Error&) {  // not there yet, or no store any more: Link knows how long to wait for a peer
    return false;
  }
}

}  // namespace starling::tcp
