#include "starling/exchange/contents.h"

#include <utility>

namespace starling {

Layout::Layout(const Contents& contents, std::vector<std::size_t> sizes, std::size_t period)
    : wire_(contents.wire),
      one_in_(contents.chooser == Chooser::mask ? static_cast<std::uint32_t>(contents.one_in) : 1),
      top_k_(contents.chooser == Chooser::mask
                 ? std::nullopt
                 : std::optional(TopK{static_cast<std::uint32_t>(contents.one_in)})),
      may_be_empty_(contents.may_be_empty),
      vectors_(contents.vectors),
      tail_(contents.tail),
      sizes_(std::move(sizes)),
      period_(period) {}

std::size_t Layout::values(SwapId id) const {
  const std::size_t size = sizes_[id.block];
  return vectors_ * (top_k_ ? top_k_->words(size) : mask(id).chosen_of(size)) + tail_;
}

Frame Layout::frame(FrameType type, SwapId id, Wire wire) const {
  return {.type = type,
          .dtype = static_cast<std::uint8_t>(wire),
          .round = id.round,
          .block = id.block,
          .value = word(id)};
}

bool Layout::fits(const Frame& frame, std::size_t bytes, Wire wire) const {
  const bool right_size = frame.total == bytes || (may_be_empty_ && frame.total == 0);
  return right_size && frame.dtype == static_cast<std::uint8_t>(wire) &&
         frame.value == word({frame.round, frame.block});
}

bool Layout::may_be_read(SwapId id, const SentBlock& block) const {
  const bool empty = may_be_empty_ && block.bytes().empty();
  return block.may_be_read() && (!top_k_ || empty || is_sound(*top_k_, block.bytes(), sizes_[id.block]));
}

}  // namespace starling
