// The peers of a worker, which say what the input says, in virtual time and on one thread: whoever
// waits on the transport's condition plays the input on. After its end only time passes.
//
//   event    a byte: its high half is the peer, its low half says what happens
//   0 1 2    the peer is connected; its connection breaks; it is lost
//   3        time passes: 2^n ms, n of a byte below 8
//   4 - 9    the peer sends a frame that this worker has sent to it, one of the last 16 by a byte,
//            with some bytes of head and payload changed
//   10 - 15  the peer sends a frame of its own
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "starling/core/crc32c.h"
#include "starling/core/log.h"
#include "starling/transport/transport.h"
#include "tests/fuzz/script.h"
#include "tests/fuzz/sealed.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

inline const Log kOneLine = [](Level, const std::string& said) {
  check(said == printable(said), "not one line: " + said);
};

class Stage {
 public:
  Stage(std::string_view input, int rank, int size) : script(input), rank_(rank), size_(size) {}

  Script script;
  // The worker's transport. There is one at a time.
  std::unique_ptr<Transport> transport();
  // Runs what is posted and due, then one event. False: the input has ended.
  bool turn() noexcept;  // as a handler may not throw
  // The same in a wait, in which time passes at last.
  void wait(Time deadline);

 private:
  class Played;
  struct Sent {
    Frame frame;
    std::vector<std::byte> payload;
  };
  struct Peer {
    bool connected = false;
    std::deque<Sent> sent;
  };
  static constexpr std::size_t kRemembered = 16, kLarge = 17'000;  // frames, words

  bool run_due() noexcept;  // whether there was any
  void connect(int peer);
  void disconnect(int peer);
  void send_back(int peer);
  void send_own(int peer);
  void deliver(int peer, Frame frame, std::vector<std::byte> payload, std::uint8_t how);
  void remember(int peer, Frame frame, const Payload& payload);

  const int rank_, size_;
  TransportHandler* handler_ = nullptr;
  std::map<int, Peer> opened_;
  std::deque<std::function<void()>> posted_;
  std::multimap<Time, std::function<void()>> timers_;
  Time now_{std::chrono::hours(1)};
};

class Stage::Played final : public Transport {
 public:
  explicit Played(Stage& stage) : stage_(stage) {}
  ~Played() override { stop(); }
  int rank() const override { return stage_.rank_; }
  int size() const override { return stage_.size_; }
  void start(TransportHandler& handler) override { stage_.handler_ = &handler; }
  void stop() override {
    if (stage_.handler_ != nullptr) stage_.run_due();
    stage_.handler_ = nullptr;
    stage_.posted_.clear();
    stage_.timers_.clear();
    stage_.opened_.clear();
  }
  void open(int peer) override {
    check(0 <= peer && peer < size() && peer != rank(), "a connection with nobody");
    if (stage_.opened_.try_emplace(peer).second) post([this, peer] { stage_.connect(peer); });
  }
  void reset(int peer, const std::string&) override {
    post([this, peer] { stage_.disconnect(peer); });
  }
  void send(int peer, Frame frame, Payload payload) override { stage_.remember(peer, frame, payload); }
  void cancel(int, FrameType, std::uint64_t, std::uint32_t) override {}
  void post(std::function<void()> work) override { stage_.posted_.push_back(std::move(work)); }
  void at(Time when, std::function<void()> work) override { stage_.timers_.emplace(when, std::move(work)); }
  Time now() const override { return stage_.now_; }
  std::unique_ptr<Condition> condition() const override;
  std::uint64_t bytes_sent() const override { return 0; }
  std::uint64_t payload_sent() const override { return 0; }

 private:
  struct Turn final : Condition {
    explicit Turn(Stage& stage) : stage(stage) {}
    void notify_all() override {}
    bool wait_until(std::unique_lock<std::mutex>& lock, Time deadline,
                    const std::function<bool()>& done) override {
      while (!done()) {
        if (stage.now_ >= deadline) return false;
        lock.unlock();
        stage.wait(deadline);
        lock.lock();
      }
      return true;
    }
    Stage& stage;
  };
  Stage& stage_;
};

inline std::unique_ptr<Condition> Stage::Played::condition() const { return std::make_unique<Turn>(stage_); }
inline std::unique_ptr<Transport> Stage::transport() { return std::make_unique<Played>(*this); }

inline bool Stage::run_due() noexcept {
  while (!timers_.empty() && timers_.begin()->first <= now_) {
    posted_.push_back(std::move(timers_.begin()->second));
    timers_.erase(timers_.begin());
  }
  const bool any = !posted_.empty();
  while (!posted_.empty()) {
    const auto work = std::move(posted_.front());
    posted_.pop_front();
    work();
  }
  return any;
}

inline bool Stage::turn() noexcept {
  run_due();
  if (script.ended()) return false;
  const std::uint8_t event = script.byte();
  const int peer = event / 16 % size_;
  if (event % 16 == 3) now_ += std::chrono::milliseconds(1 << script.byte() % 8);
  if (!opened_.contains(peer)) return true;
  if (event % 16 == 0) connect(peer);
  if (event % 16 == 1) disconnect(peer);
  if (event % 16 == 2 && !opened_.at(peer).connected) handler_->lost(peer, "is gone");
  if (event % 16 > 3 && opened_.at(peer).connected) event % 16 < 10 ? send_back(peer) : send_own(peer);
  return true;
}

inline void Stage::wait(Time deadline) {
  if (run_due() || turn()) return;
  now_ = timers_.empty() ? deadline : std::clamp(timers_.begin()->first, now_, deadline);
}

inline void Stage::connect(int peer) {
  if (!std::exchange(opened_.at(peer).connected, true)) handler_->connected(peer);
}

inline void Stage::disconnect(int peer) {
  opened_.at(peer).sent.clear();
  if (std::exchange(opened_.at(peer).connected, false)) handler_->disconnected(peer, "broke");
}

// How it is sent back: bit 3 damaged, bit 4 in place, bit 5 its payload changes, bits 6 and 7: so
// many bytes of its head change.
inline void Stage::send_back(int peer) {
  const auto& all = opened_.at(peer).sent;
  const std::uint8_t which = script.byte(), how = script.byte();
  if (all.empty()) return;
  auto [frame, payload] = all[all.size() - 1 - which % all.size()];
  Header head = frame.encode();
  for (int i = 0; i < how / 64; ++i) {
    const std::size_t at = script.byte() % head.size();
    head[at] ^= std::byte{script.byte()};
  }
  if ((how & 32) != 0 && !payload.empty()) {
    const std::size_t at = script.byte() % payload.size();
    payload[at] ^= std::byte{script.byte()};
  }
  if (const auto changed = Frame::decode(sealed(head))) deliver(peer, *changed, std::move(payload), how);
}

// Its own: type, how (bits 0 to 2 the format, 3 and 4 as above, 5: its value is the payload's
// checksum, 6: a part of a payload), then the numbers, the length in words, and the payload.
inline void Stage::send_own(int peer) {
  Frame frame{.type = static_cast<FrameType>(script.byte())};
  const std::uint8_t how = script.byte();
  frame.dtype = how % 8;
  frame.round = script.number();
  frame.block = static_cast<std::uint32_t>(script.number());
  frame.step = static_cast<std::uint32_t>(script.number());
  frame.value = script.number();
  const std::size_t words = script.byte();
  const std::size_t bytes = words < 250 ? 4 * words : words == 250 ? script.byte() : 4 * kLarge;
  frame.offset = (how & 64) != 0 ? script.number() : 0;
  frame.total = (how & 64) != 0 ? script.number() : bytes;
  const std::string_view given = script.bytes(words > 250 ? 64 : bytes);
  std::vector<std::byte> payload(bytes);
  std::ranges::copy(std::as_bytes(std::span(given)), payload.begin());
  if ((how & 32) != 0) frame.value = crc32c(payload);
  deliver(peer, frame, std::move(payload), how);
}

inline void Stage::deliver(int peer, Frame frame, std::vector<std::byte> payload, std::uint8_t how) {
  frame.length = static_cast<std::uint32_t>(payload.size());
  if (!Frame::decode(frame.encode())) return;
  if ((how & 16) != 0 && frame.total == payload.size()) {
    const auto owner = std::make_shared<const std::vector<std::byte>>(payload);
    if (handler_->received_in_place(peer, frame, {owner, *owner})) return;
  }
  std::span<std::byte> place;
  if (!payload.empty()) place = handler_->place(peer, frame);
  check(place.empty() || place.size() == payload.size(), "a place of another size");
  if (!place.empty()) std::ranges::copy(payload, place.begin());
  handler_->received(peer, frame, place, (how & 8) == 0 && place.size() == payload.size());
}

inline void Stage::remember(int peer, Frame frame, const Payload& payload) {
  const auto opened = opened_.find(peer);
  if (opened == opened_.end() || !opened->second.connected) return;
  if (frame.total == 0) frame.total = frame.offset + payload.bytes.size();
  auto& all = opened->second.sent;
  if (all.size() == kRemembered) all.pop_front();
  all.push_back({frame, {payload.bytes.begin(), payload.bytes.end()}});
}

}  // namespace starling::fuzz
