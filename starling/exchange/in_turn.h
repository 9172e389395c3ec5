// Messages to many peers of which a few are under way at a time, each to another peer. Were all sent at once, each would have a
// connection of its own to share the line with; connections do not share it equally, and a group waits for the slowest. A peer
// that is slow holds up what goes to itself: messages to others overtake. How much is under way in all follows the line: what it
// carries while word comes back, and more.
//
// A state machine as edge.h and group.h are: the caller says when a message has arrived, and when a connection broke. Of messages
// to one peer no two have the same type, round and block.
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
  // Large ones at a time, in all: of several peers one may be slow. Fewer peers than that need no turns.
  static constexpr std::size_t kAtOnce = 4;

  using Send = std::function<void(int to, const Frame& frame, const Payload& payload)>;
  using Now = std::function<Time()>;
  InTurn(Send send, Now now) : send_(std::move(send)), now_(std::move(now)) {}

  void add(int to, const Frame& frame, Payload payload);
  // This message to `to` has arrived. Nothing happens where it is not under way.
  void arrived(int to, FrameType type, SwapId id);
  void cancel(SwapId id);
  // Whatever waits of this swap goes now, and nothing of it counts any longer.
  void hurry(SwapId id);
  void disconnected(int to);  // what was under way to it is lost
  // A message without a payload, and its answer, took so long. The shortest counts; nothing below zero does, nor above kLongest.
  void round_trip(int to, Duration took);
  std::size_t under_way() const { return under_way_.size(); }

 private:
  // While less is under way, to a peer or in all, another one goes: small ones together, large ones one by one. Over slow lines not
  // more than this: twice as much let a slow host hold up more, and complete on six hosts, one with 100 and five with 250 Mbit/s,
  // took 728 ms in place of 698.
  static constexpr std::size_t kBytes = 256 * 1024;
  static constexpr Duration kLongest = std::chrono::seconds(10);

  struct Message {
    int to = 0;
    Frame frame;
    Payload payload;  // until it is under way
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
  std::size_t bytes_ = 0;  // under way
  std::map<int, std::size_t> bytes_to_;
  std::size_t window_ = kBytes;  // which should be under way
  std::size_t arrived_ = 0;      // bytes, since then
  Time since_{};
  std::map<int, Duration> round_trips_;
};

}  // namespace starling
