// Messages between two workers, over a transport without an exchange.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>

#include "bench/measure.h"
#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace bench {

using starling::Frame;
using starling::FrameType;

inline constexpr std::size_t kMessage = 64 << 10;  // of a round trip

// One of two workers and its transport to the other.
class Player : protected starling::TransportHandler {
 protected:
  Player(const starling::World& world, const std::string& name, std::size_t bytes)
      : peer_(1 - world.rank),
        sent_(std::make_shared<starling::Buffer>(bytes)),
        received_(bytes),
        transport_(world.make_transport(world, name)) {}
  ~Player() override = default;
  void connect() {
    transport_->start(*this);
    transport_->open(peer_);
    wait([&] { return connected_; }, "connection");
  }
  template <class Condition>
  void wait(const Condition& condition, const char* what) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), condition))
      throw std::runtime_error(std::string("no ") + what + " within a minute");
  }
  template <class Change>
  void tell(const Change& change) {
    const std::lock_guard lock(mutex_);
    change();
    changed_.notify_all();
  }
  const int peer_;
  const std::shared_ptr<starling::Buffer> sent_;
  starling::Buffer received_;

 private:
  void connected(int) override {
    tell([&] { connected_ = true; });
  }
  void disconnected(int, const std::string&) override {}
  void lost(int, const std::string&) override {}
  std::span<std::byte> place(int, const Frame& frame) override {
    return std::span(received_).subspan(frame.offset, frame.length);
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool connected_ = false;

 protected:
  // The derived class stops it before anything else goes.
  std::unique_ptr<starling::Transport> transport_;
};

// Messages back and forth, each handed to the training thread.
class Messenger final : Player {
 public:
  explicit Messenger(const starling::World& world) : Player(world, "messages", kMessage) { connect(); }
  ~Messenger() override { transport_->stop(); }
  void send() { transport_->send(peer_, Frame{.type = FrameType::data}, payload_of(sent_)); }
  void receive() {
    ++awaited_;
    wait([&] { return arrived_ >= awaited_; }, "message");
  }

 private:
  void received(int, const Frame&, std::span<const std::byte>, bool intact) override {
    if (intact) tell([&] { ++arrived_; });
  }
  std::int64_t arrived_ = 0, awaited_ = 0;
};

// Blocks circulate, so that both directions are full. A control frame goes back and forth among
// them, from one I/O thread to the other's.
class UnderLoad final : Player {
 public:
  explicit UnderLoad(const starling::World& world) : Player(world, "under-load", kBlock) {
    connect();
    for (int i = 0; i < kBlocks; ++i) bulk();
  }
  ~UnderLoad() override { transport_->stop(); }
  // For rank 0 only: seconds from its I/O thread to the other's and back.
  double round_trip() {
    const std::int64_t before = answers_;
    transport_->post([this] {
      asked_ = now();
      transport_->send(peer_, {.type = FrameType::query});
    });
    wait([&] { return answers_ > before; }, "answer");
    return took_;
  }

 private:
  static constexpr std::size_t kBlock = 4 << 20;
  static constexpr int kBlocks = 4;  // of each worker at first
  void bulk() { transport_->send(peer_, {.type = FrameType::data}, payload_of(sent_)); }
  void received(int, const Frame& frame, std::span<const std::byte>, bool) override {
    if (frame.type == FrameType::query) {
      transport_->send(peer_, {.type = FrameType::outcome});
    } else if (frame.type == FrameType::outcome) {
      const double took = now() - asked_;
      tell([&] { took_ = took, ++answers_; });
    } else if (frame.offset + frame.length == frame.total) {
      bulk();
    }
  }
  double asked_ = 0, took_ = 0;
  std::int64_t answers_ = 0;
};

}  // namespace bench
