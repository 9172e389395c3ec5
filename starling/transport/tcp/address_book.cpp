#include "starling/transport/tcp/address_book.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/core/with_lock.h"
#include "starling/transport/tcp/local_end.h"
#include "starling/transport/tcp/tcp.h"
#include "starling/world/ask_again.h"

namespace starling::tcp {
namespace {

// The longest time that the queries of one round wait together.
constexpr auto kRound = std::chrono::milliseconds(100);
// In one round, of those that no link seeks: many places of a run may be empty for ever.
constexpr std::size_t kOthersInRound = 8;
constexpr auto kLongestPause = std::chrono::milliseconds(1000);
constexpr auto kLongestStop = std::chrono::milliseconds(1000);

// "host:port", as to_string() writes it.
std::optional<Tcp::endpoint> parse(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  asio::error_code error;
  const auto address = asio::ip::make_address(host, error);
  const auto port = parse_number<std::uint16_t>(std::string_view(text).substr(colon + 1));
  if (error || !port || *port == 0) return std::nullopt;
  return Tcp::endpoint(address, *port);
}

}  // namespace

std::string signed_address(const Identity& identity, int rank, const std::string& address) {
  const std::string said = fmt::format("{} {} {}", identity.channel, rank, address);
  return fmt::format("{} {}", address, sign(identity.token, said));
}

SaidAddress read_address(const Identity& identity, int rank, const std::string& said) {
  const std::string text = said.substr(0, said.find(' '));
  if (said != signed_address(identity, rank, text)) return {};
  return {true, parse(text)};
}

// The state of the thread. It may outlive the book.
struct AddressBook::Search {
  void run();
  std::vector<int> next_round();
  // False: it is not there yet. Throws StoreLost.
  bool look_up(int peer, std::chrono::milliseconds patience);

  const Identity identity;
  const std::shared_ptr<Store> store;
  const Log log;
  const std::function<std::string(int rank)> fate;
  const Found found;
  const Ended ended;
  const Forged forged;
  std::mutex mutex;
  std::condition_variable changed;
  std::set<int> missing;
  std::set<int> sought{};  // by links
  int last_other = -1;     // in the last round
  std::set<int> warned{};  // of forged addresses; these two on the search's thread
  bool was_lost = false;   // the store
  bool stopping = false;
  bool done = false;
};

AddressBook::AddressBook(const World& world, const std::string& channel, Found found, Ended ended,
                         Forged forged)
    : search_(new Search{{world.rank, world.size, channel, world.token},
                         world.store,
                         world.log,
                         world.fate,
                         std::move(found),
                         std::move(ended),
                         std::move(forged),
                         {},
                         {},
                         {}}) {
  for (int peer = 0; peer < world.size; ++peer) {
    if (peer != world.rank) search_->missing.insert(peer);
  }
}

void AddressBook::publish(const Tcp::endpoint& own) {
  const Identity& self = search_->identity;
  search_->store->set(tcp_address_key(self.channel, self.rank),
                      signed_address(self, self.rank, to_string(own)));
}

void AddressBook::start() {
  thread_ = std::thread([search = search_] { search->run(); });
}

void AddressBook::stop() {
  std::unique_lock lock(search_->mutex);
  search_->stopping = true;
  search_->changed.notify_all();
  if (!thread_.joinable()) return;
  const bool done = search_->changed.wait_for(lock, kLongestStop, [&] { return search_->done; });
  lock.unlock();
  if (done) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

void AddressBook::refresh(int peer) {
  with_lock(search_->mutex, [&] {
    search_->missing.insert(peer);
    search_->sought.insert(peer);
  });
  search_->changed.notify_all();
}

// Those that are sought, and some of the others in turn. With the lock.
std::vector<int> AddressBook::Search::next_round() {
  std::vector<int> round, others;
  for (const int peer : missing) (sought.contains(peer) ? round : others).push_back(peer);
  std::rotate(others.begin(), std::upper_bound(others.begin(), others.end(), last_other), others.end());
  others.resize(std::min(others.size(), kOthersInRound));
  if (!others.empty()) last_other = others.back();
  round.insert(round.end(), others.begin(), others.end());
  return round;
}

void AddressBook::Search::run() {
  auto pause = std::chrono::milliseconds(10);
  std::unique_lock lock(mutex);
  while (!stopping) {
    bool any = false, lost = false;
    const std::vector<int> round = next_round();
    for (const int peer : round) {
      if (stopping || lost) break;
      missing.erase(peer);
      lock.unlock();
      bool there = false;
      std::string reason;
      try {
        there = look_up(peer, kRound / std::ssize(round));
      } catch (const StoreLost& failure) {
        reason = failure.what();
      }
      lock.lock();
      lost = !reason.empty();
      if (!std::exchange(was_lost, lost) && lost && !stopping)
        log(Level::warning,
            fmt::format("{}: until it is back, workers that restart at another address are not found",
                        reason));
      any |= there;
      if (!there) missing.insert(peer);
    }
    if (missing.empty()) {
      changed.wait(lock, [&] { return stopping || !missing.empty(); });
    } else {
      pause = any    ? std::chrono::milliseconds(10)
              : lost ? kAskStoreAgain
                     : std::min(2 * pause, kLongestPause);
      changed.wait_for(lock, pause, [&] { return stopping; });
    }
  }
  done = true;
  changed.notify_all();
}

bool AddressBook::Search::look_up(int peer, std::chrono::milliseconds patience) {
  try {
    const std::string said = store->get(tcp_address_key(identity.channel, peer), patience);
    const auto [is_signed, address] = read_address(identity, peer, said);
    const std::lock_guard lock(mutex);  // after stop() nobody is told anything
    if (!is_signed) {
      if (stopping) return false;
      forged(peer);
      if (warned.insert(peer).second && log)
        log(Level::warning, fmt::format("the address of worker {} in the store is not signed with this run's "
                                        "token: it is not used",
                                        peer));
      return false;
    }
    if (address && !stopping) found(peer, *address);
    return address.has_value();
  } catch (const StoreLost&) {
    throw;
  } catch (const Error&) {  // not there yet; Link decides how long to wait for a peer
    const std::string how = fate(peer);
    const std::lock_guard lock(mutex);
    if (!how.empty() && !stopping) ended(peer, how);
    return false;
  }
}

}  // namespace starling::tcp

namespace starling {

std::string tcp_address_key(const std::string& channel, int rank) {
  return fmt::format("starling/tcp/{}/{}", channel, rank);
}

}  // namespace starling
