// The contents of a wire block, and what a swap does with them: a value that the scheme
// chooses, the same on all workers.
//
//   wire block   the chosen values of each vector, one vector after the other; then the tail; with
//                modular codes their Trailer
//   vector       as many values as the block has: x, or x and what is tracked beside it
//   tail         a few values that go in every round, such as the weight of push-sum (weight.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "starling/exchange/edge.h"
#include "starling/exchange/sent_block.h"
#include "starling/kernels/format.h"
#include "starling/kernels/mask.h"
#include "starling/kernels/top_k.h"
#include "starling/transport/frame.h"

namespace starling {

// The one that chooses which values are sent, one in `one_in`.
//   mask     the round's mask, which is the same for all workers
//   sender   each sender (kernels/top_k.h). An arrival then has no mask, and its indices are only
//            known to rise and to lie within the block
enum class Chooser { mask, sender };

// The effect of a swap that commits.
//   averages   either end mixes the other's block, and gives nothing away
//   pushes     what one end takes the other has given. While the swap is in doubt, the sender's
//              share counts as given. It comes back if the neighbour turns out not to have taken
//              it, so a share is never at both ends
enum class Exchanged { averages, pushes };

struct Contents {
  Wire wire = Wire::fp32;
  int one_in = 1;                   // 1 to Mask::kMost
  Chooser chooser = Chooser::mask;  // sender: in fp32, one vector, no tail
  bool may_be_empty = false;        // with Chooser::sender: a block without values is allowed
  Exchanged exchanged = Exchanged::averages;
  std::size_t vectors = 1;
  std::size_t tail = 0;  // values
  // JumpGuard's factor; 0: off. Equal on all workers. Not with Chooser::sender.
  double jump_guard = 0;

  // True if a group may send the mean of its blocks. Otherwise it goes in pairs, each edge for
  // itself: modular codes and indices have no mean, a push has a sender and a receiver, and whose
  // block has jumped cannot be told from a mean.
  bool has_mean() const {
    return !is_modular(wire) && chooser == Chooser::mask && exchanged == Exchanged::averages &&
           jump_guard == 0;
  }
};

// The wire blocks of all swaps. Never changes, so any thread may ask.
class Layout {
 public:
  // sizes: values per vector of each block. period: rounds of the schedule.
  Layout(const Contents& contents, std::vector<std::size_t> sizes, std::size_t period);

  std::size_t blocks() const { return sizes_.size(); }
  Wire wire() const { return wire_; }
  // Rounds until every edge has seen every value.
  std::uint64_t cycle() const { return period_ * one_in_; }
  Mask mask(SwapId id) const {
    return Mask::of_round(one_in_, id.block, (id.round - 1) % period_, (id.round - 1) / period_);
  }
  std::size_t values(SwapId id) const;
  // Those of the first vector, with Chooser::mask: the parameters.
  std::size_t parameters(SwapId id) const { return mask(id).chosen_of(sizes_[id.block]); }
  std::size_t bytes(SwapId id) const { return block_bytes(wire_, values(id)); }
  Sending sending(SwapId id) const {
    return bytes(id) > kSentAtOnce ? Sending::when_all_are_ready : Sending::at_once;
  }

  // The frame that carries a block, a part or a mean of this swap.
  Frame frame(FrameType type, SwapId id, Wire wire) const;
  // True if the frame's payload has so many bytes in all, or none if it may be empty, in this wire,
  // and the values that its swap chooses.
  bool fits(const Frame& frame, std::size_t bytes, Wire wire) const;
  // True if this whole block may be handed out.
  bool may_be_read(SwapId id, const SentBlock& block) const;

 private:
  // Says in a frame which values are chosen.
  std::uint64_t word(SwapId id) const { return top_k_ ? top_k_->word() : mask(id).word(); }

  const Wire wire_;
  const std::uint32_t one_in_;  // of masks
  const std::optional<TopK> top_k_;
  const bool may_be_empty_;
  const std::size_t vectors_, tail_;
  const std::vector<std::size_t> sizes_;
  const std::size_t period_;
};

}  // namespace starling
