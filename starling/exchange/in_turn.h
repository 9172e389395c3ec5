// Messages to many peers of which a few are under way at a time, each to another peer. Were all sent at once, each would have a
// connection of its own to share the line with; connections do not share it equally, and a group waits for the slowest. A peer
// that is slow holds up what goes to itself: messages to others overtake.
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

#include "starling/exchange/edge.h"
#include "starling/transport/buffer.h"
#include "starling/transport/frame.h"

namespace starling {

class InTurn {
 public:
  // Large ones at a time, in all: of several peers one may be slow. Fewer peers than that need no turns.
  static constexpr std::size_t kAtOnce = 4;

  using Send = std::function<void(int to, const Frame& frame, const Payload& payload)>;
  explicit InTurn(Send send) : send_(std::move(send)) {}

  void add(int to, const Frame& frame, Payload payload);
  // This message to `to` has arrived. Nothing happens where it is not under way.
  void arrived(int to, FrameType type, SwapId id);
  void cancel(SwapId id);
  // Whatever waits of this swap goes now, and nothing of it counts any longer.
  void hurry(SwapId id);
  void disconnected(int to);  // what was under way to it is lost
  std::size_t under_way() const { return under_way_.size(); }

 private:
  struct Message {
    int to = 0;
    Frame frame;
    Payload payload;  // until it is under way
    std::size_t bytes = 0;
    SwapId id() const { return {frame.round, frame.block}; }
  };
  template <typename Which>
  void no_longer_under_way(Which which);
  void send_more();

  Send send_;
  std::deque<Message> waiting_;
  std::vector<Message> under_way_;
  std::size_t bytes_ = 0;  // under way
  std::map<int, std::size_t> bytes_to_;
};

}  // namespace starling
