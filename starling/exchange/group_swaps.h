// The swaps in groups: outgoing and incoming parts and means, and the outcome of a block. The
// protocol is Group's.
//
// On the transport's thread.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "starling/exchange/edge_swaps.h"
#include "starling/exchange/group.h"
#include "starling/exchange/in_turn.h"
#include "starling/exchange/swaps.h"

namespace starling {

class GroupSwaps final : private GroupActions {
 public:
  // edges: in place of an aborted group. Both outlive it.
  GroupSwaps(const SwapTools& tools, EdgeSwaps& edges);

  void begin(SwapId id, std::shared_ptr<const Buffer> mine, bool finite);
  void skip_to(std::uint64_t round);
  // Drops the swaps in doubt, even if they are mended later.
  void forget_doubts();
  void disconnected(int rank);
  // A small frame to this worker and its answer took so long.
  void round_trip(int rank, Duration took) { turns_.round_trip(rank, took); }

  std::span<std::byte> place(int from, const Frame& frame);
  bool received_in_place(int from, const Frame& frame, const Payload& payload);
  void received(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact);

  Group& protocol() { return protocol_; }
  const Group& protocol() const { return protocol_; }

 private:
  struct Swap {
    std::shared_ptr<const Buffer> mine;
    std::shared_ptr<Buffer> mean;  // floats, whatever the wire: rounded, it would move the sum
    bool finite = true;
  };
  // From one member.
  struct Sender {
    Inbox parts;                                 // of my shard
    Inbox means{Inbox::kUnbounded, Wire::fp32};  // of its shard
  };
  // Values of a wire block that a member owns.
  struct Shard {
    std::size_t from = 0, count = 0;
  };

  void send_parts(SwapId id) override;
  void send_mean(SwapId id) override;
  void cancel(SwapId id) override;
  void send(int to, FrameType type, SwapId id, bool yes) override { tools_.send(to, type, id, yes); }
  void decided(SwapId id, Outcome outcome, bool in_pairs) override;
  void mended(SwapId id, bool committed) override;

  const std::vector<int>& members(SwapId id) const { return tools_.meetings.at(id.round).group; }
  const std::vector<Partner>& others(SwapId id) const { return tools_.meetings.at(id.round).partners; }
  bool member(int rank, const Frame& frame) const;  // of the group that this frame speaks of
  Shard shard(SwapId id, int rank) const;
  // A whole part of my shard, and a whole mean of a member's.
  bool fits_part(const Frame& frame) const;
  bool fits_mean(int from, const Frame& frame) const;
  bool expects_part(int from, const Frame& frame) const;
  void received_part(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact);
  void received_mean(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact);
  // A part or a mean of so many bytes waits for its turn, and the receiver says when it has come.
  bool in_turn(SwapId id, std::size_t bytes) const;
  void send_payload(int to, const Frame& frame, const Payload& payload);
  void say_got(int to, const Frame& frame);
  Arrival arrival_of(SwapId id, const Swap& swap) const;
  Sender& sender(int rank) { return senders_[static_cast<std::size_t>(rank)]; }
  const Sender& sender(int rank) const { return senders_[static_cast<std::size_t>(rank)]; }

  const SwapTools& tools_;
  EdgeSwaps& edges_;
  const int me_;
  BufferPool pool_;
  std::vector<float> zeros_;     // as many as my largest shard
  std::vector<Sender> senders_;  // by rank; my own is unused
  Group protocol_{*this};
  InTurn turns_;  // of parts and means
  std::map<SwapId, Swap> open_, doubts_;
};

}  // namespace starling
