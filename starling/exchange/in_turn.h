// Messages to many peers, a few in flight at a time, each to another peer. If all were sent at
// once, each would share the line with the others' connections. Connections do not share it
// equally, and a group waits for the slowest. A slow peer delays only its own messages; messages to
// others overtake. The total amount in flight follows the line: the bytes that it carries until an
// acknowledgement returns, and more.
//
// A state machine like edge.h and group.h: the caller reports when a message has arrived, and when
// a connection broke. No two messages to one peer have the same type, round and block.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "starling/core/clock.h"
#include "starling/exchange/edge.h"
#include "starling/transport/buffer.h"
#include "starling/transport/frame.h"

namespace starling {

class InTurn {
 public:
  // Large messages at a time, in total: one of several peers may be slow. Fewer peers than that
  // need no turns.
  static constexpr std::size_t kAtOnce = 4;

  using Send = std::function<void(int to, const Frame& frame, const Payload& payload)>;
  using Now = std::function<Time()>;
  InTurn(Send send, Now now) : send_(std::move(send)), now_(std::move(now)) {}

  void add(int to, const Frame& frame, Payload payload);
  // This message to `to` has arrived. Does nothing if it is not in flight.
  void arrived(int to, FrameType type, SwapId id);
  void cancel(SwapId id);
  // All waiting messages of this swap go now, and none of it counts any longer.
  void hurry(SwapId id);
  void disconnected(int to);  // its messages in flight are lost
  // The time of a message without a payload and its answer. The shortest counts; values below zero
  // or above kLongest do not.
  void round_trip(int to, Duration took);
  std::size_t under_way() const { return under_way_.size(); }

 private:
  // While less is in flight, to a peer or in total, another message goes: small ones together,
  // large ones one by one. Over slow lines not more than this. With twice as much, a slow host
  // delayed others more: complete on six hosts, one with 100 and five with 250 Mbit/s, took 728 ms
  // in place of 698.
  static constexpr std::size_t kBytes = 256 * 1024;
  static constexpr Duration kLongest = std::chrono::seconds(10);

  struct Message {
    int to = 0;
    Frame frame;
    Payload payload;  // until it is in flight
    std::size_t bytes = 0;
    SwapId id() const { return {frame.round, frame.block}; }
  };
  template <typename Which>
  void forget(Which which);
  void measure(std::size_t arrived);
  void send_more();

  Send send_;
  Now now_;
  std::deque<Message> waiting_;
  std::vector<Message> under_way_;
  std::size_t bytes_ = 0;  // in flight
  std::map<int, std::size_t> bytes_to_;
  std::size_t window_ = kBytes;  // wanted in flight
  std::size_t arrived_ = 0;      // bytes, since then
  Time since_{};
  std::map<int, Duration> round_trips_;
};

}  // namespace starling
