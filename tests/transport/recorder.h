// A handler that records its calls and keeps the payloads, for tests to wait for and to check.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "starling/transport/transport.h"

namespace starling {

class Recorder final : public TransportHandler {
 public:
  enum class Kind { connected, disconnected, lost, ended, received };
  struct Event {
    Kind kind;
    int peer;
    Frame frame;
    bool intact = false;
    std::string reason;
  };
  using Events = std::vector<Event>;

  // The payloads that place() refuses; set before the transport starts.
  std::function<bool(const Frame&)> unwanted = [](const Frame&) { return false; };

  // The payloads that it takes in place, and may keep; set before the transport starts.
  std::function<bool(int peer, const Frame&, const Payload&)> in_place = [](int, const Frame&,
                                                                            const Payload&) { return false; };

  void connected(int peer) override { note({Kind::connected, peer, {}, false, {}}); }
  void disconnected(int peer, const std::string& reason) override {
    note({Kind::disconnected, peer, {}, false, reason});
  }
  void lost(int peer, const std::string& reason) override { note({Kind::lost, peer, {}, false, reason}); }
  void ended(int peer) override { note({Kind::ended, peer, {}, false, {}}); }

  std::span<std::byte> place(int peer, const Frame& frame) override {
    const std::lock_guard lock(mutex_);
    if (unwanted(frame)) return {};
    auto& block = blocks_[{peer, frame.type, frame.round, frame.block}];
    if (block.size() != frame.total) block.assign(frame.total, std::byte{0});
    return std::span(block).subspan(frame.offset, frame.length);
  }

  void received(int peer, const Frame& frame, std::span<const std::byte> payload, bool intact) override {
    EXPECT_EQ(payload.size(), unwanted(frame) ? 0 : frame.length);
    note({Kind::received, peer, frame, intact, {}});
  }

  bool received_in_place(int peer, const Frame& frame, const Payload& payload) override {
    if (!in_place(peer, frame, payload)) return false;
    note({Kind::received, peer, frame, true, {}});
    return true;
  }

  // Waits until the events so far satisfy this. The deadline is far beyond any healthy run.
  bool wait(const std::function<bool(const Events&)>& satisfied) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return satisfied(events_); });
  }
  bool wait_for(Kind kind, int peer, int times = 1) {
    return wait([=](const Events& events) { return times_of(events, kind, peer) >= times; });
  }
  // ... until a frame of this type, round and block has come from there to its last byte.
  bool wait_for_frame(int peer, FrameType type, std::uint64_t round = 0, std::uint32_t block = 0) {
    return wait([=](const Events& events) {
      return std::any_of(events.begin(), events.end(), [&](const Event& e) {
        return e.kind == Kind::received && e.peer == peer && e.frame.type == type && e.frame.round == round &&
               e.frame.block == block && e.frame.offset + e.frame.length == e.frame.total;
      });
    });
  }

  static int times_of(const Events& events, Kind kind, int peer) {
    return static_cast<int>(std::count_if(events.begin(), events.end(),
                                          [=](const Event& e) { return e.kind == kind && e.peer == peer; }));
  }
  int times(Kind kind, int peer) {
    const std::lock_guard lock(mutex_);
    return times_of(events_, kind, peer);
  }
  Events events() {
    const std::lock_guard lock(mutex_);
    return events_;
  }
  // The frames that have come from this peer.
  Events received(int peer) {
    Events all = events();
    std::erase_if(all, [=](const Event& e) { return e.kind != Kind::received || e.peer != peer; });
    return all;
  }
  std::vector<std::string> reasons(Kind kind) {
    std::vector<std::string> all;
    for (const Event& e : events()) {
      if (e.kind == kind) all.push_back(e.reason);
    }
    return all;
  }
  std::vector<std::byte> block(int peer, FrameType type, std::uint64_t round = 0, std::uint32_t block = 0) {
    const std::lock_guard lock(mutex_);
    return blocks_[{peer, type, round, block}];
  }
  std::thread::id thread() {
    const std::lock_guard lock(mutex_);
    return thread_;
  }

 private:
  void note(Event event) {
    {
      const std::lock_guard lock(mutex_);
      if (events_.empty()) thread_ = std::this_thread::get_id();
      EXPECT_EQ(thread_, std::this_thread::get_id()) << "the handler was called on two threads";
      events_.push_back(std::move(event));
    }
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Events events_;
  std::map<std::tuple<int, FrameType, std::uint64_t, std::uint32_t>, std::vector<std::byte>> blocks_;
  std::thread::id thread_;
};

// All (a, b) of n workers with a != b.
inline std::vector<std::pair<int, int>> ordered_pairs(int n) {
  std::vector<std::pair<int, int>> pairs;
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      if (a != b) pairs.emplace_back(a, b);
    }
  }
  return pairs;
}

// Workers with a transport and a recorder each, by rank.
struct Ends {
  void add(std::unique_ptr<Transport> transport) {
    recorders.push_back(std::make_unique<Recorder>());
    transports.push_back(std::move(transport));
    transports.back()->start(*recorders.back());
  }
  // Opens all edges, and waits for them.
  void connect_all() {
    const auto pairs = ordered_pairs(static_cast<int>(transports.size()));
    for (const auto& [a, b] : pairs) transports[a]->open(b);
    for (const auto& [a, b] : pairs)
      ASSERT_TRUE(recorders[a]->wait_for(Recorder::Kind::connected, b)) << a << " with " << b;
  }
  std::vector<std::unique_ptr<Recorder>> recorders;
  std::vector<std::unique_ptr<Transport>> transports;  // last: they end before their handlers go
};

using Bytes = std::vector<std::byte>;

inline std::shared_ptr<const Bytes> random_block(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  auto bytes = std::make_shared<Bytes>(size);
  for (std::size_t at = 0; at < size; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random();
    std::memcpy(bytes->data() + at, &word, std::min(sizeof word, size - at));
  }
  return bytes;
}

inline Payload payload_of(std::shared_ptr<const Bytes> bytes) {
  const std::span<const std::byte> span(*bytes);
  return {std::move(bytes), span};
}

}  // namespace starling
