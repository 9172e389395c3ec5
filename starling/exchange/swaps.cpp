#include "starling/exchange/swaps.h"

#include "starling/core/failpoint.h"
#include "starling/exchange/edge_swaps.h"
#include "starling/exchange/group_swaps.h"

namespace starling {

void Holdback::add(SwapId id, const Layout& layout, const Meetings& meetings) {
  if (layout.sending(id) == Sending::when_all_are_ready) held_.insert(id);
  release(meetings);
}

void Holdback::release(const Meetings& meetings) {
  std::erase_if(held_, [&](SwapId id) {
    const bool moves = edges_->moves_before(id.round) || groups_->protocol().moves_before(id.round);
    if (moves && !meetings.always_one_group()) return false;
    edges_->release(id);
    groups_->protocol().release(id);
    return true;
  });
}

void SwapTools::send(int to, FrameType type, SwapId id, bool yes) const {
  if (type == FrameType::ack || type == FrameType::group_ack) failpoint("vote");
  // An abort because I went on without the peer tells it where I am.
  const bool behind = yes && (type == FrameType::abort || type == FrameType::group_abort);
  transport.send(to,
                 {.type = type, .round = id.round, .block = id.block, .value = behind ? rounds.next() : yes});
}

}  // namespace starling
