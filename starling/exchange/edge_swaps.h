// The swaps over edges: their outgoing and incoming blocks, and their outcomes. The protocol of one
// edge is Edge's.
//
// On the transport's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "starling/exchange/edge.h"
#include "starling/exchange/swaps.h"

namespace starling {

class EdgeSwaps {
 public:
  // pushes: Exchanged::pushes.
  EdgeSwaps(const SwapTools& tools, bool pushes);

  // Begins a swap with each partner of the round.
  void begin(SwapId id, const std::shared_ptr<const Buffer>& mine, bool finite);
  // A span of the timeline for each partner, which ends when the swap is decided.
  void begin_spans(SwapId id);
  // The swap was decided in a group.
  void settle(SwapId id, Outcome outcome);
  void skip_to(std::uint64_t round);
  // Drops the swaps in doubt, even if they are mended later.
  void forget_doubts();
  void disconnected(int rank);

  std::span<std::byte> place(int from, const Frame& frame);
  bool received_in_place(int from, const Frame& frame, const Payload& payload);
  void received_chunk(int from, const Frame& frame, std::span<const std::byte> chunk, bool intact);
  void received_word(int from, const Frame& frame);  // an Edge's frame

  Edge& edge(int rank) { return at(rank).edge; }
  const Edge& edge(int rank) const { return at(rank).edge; }
  // True if this worker can take part in a swap of this round.
  bool present(int rank, std::uint64_t round) const {
    return edge(rank).up() && tools_.links.present(rank, round);
  }
  // Is a large block of an earlier round on its way, here or there?
  bool moves_before(std::uint64_t round) const;
  void release(SwapId id);

 private:
  // With one neighbour.
  struct Swaps final : EdgeActions {
    Swaps(EdgeSwaps& all, int rank);
    void send_block(SwapId id) override;
    void cancel_block(SwapId id) override;
    void send(FrameType type, SwapId id, bool yes) override { tools.send(rank, type, id, yes); }
    void decided(SwapId id, Outcome outcome) override;
    void mended(SwapId id, bool committed) override;

    EdgeSwaps& all;
    const SwapTools& tools;
    const int rank;
    Edge edge{*this};
    EdgeInbox inbox;
    std::map<SwapId, Arrival> open;  // mixed if the swap commits
    std::map<SwapId, Arrival> doubts;
    std::map<SwapId, Timeline::Scope> spans;  // of open swaps
  };
  Swaps& at(int rank) const { return *edges_[static_cast<std::size_t>(rank)]; }
  bool expects(const Swaps& sender, const Frame& frame) const;
  bool jumps(const Swaps& sender, SwapId id, const SentBlock& theirs) const;

  const SwapTools& tools_;
  const bool pushes_;
  BufferPool pool_;
  std::vector<std::unique_ptr<Swaps>> edges_;  // by rank; my own is unused
};

}  // namespace starling
