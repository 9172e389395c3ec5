// The common ground of swaps over edges (edge_swaps.h) and in groups (group_swaps.h).
#pragma once

#include <cstddef>
#include <memory>
#include <set>

#include "starling/core/log.h"
#include "starling/core/timeline.h"
#include "starling/exchange/contents.h"
#include "starling/exchange/current_round.h"
#include "starling/exchange/inbox.h"
#include "starling/exchange/jump_guard.h"
#include "starling/exchange/ledger.h"
#include "starling/exchange/links.h"
#include "starling/exchange/meetings.h"
#include "starling/transport/transport.h"

namespace starling {

class EdgeSwaps;
class GroupSwaps;

// Large blocks that wait until no block of an earlier round is on its way: two at once would each
// delay the other, and the last round is waited for. If every round is of one and the same group,
// its links keep that order by themselves. On the transport's thread.
class Holdback {
 public:
  void watch(EdgeSwaps& edges, GroupSwaps& groups) { edges_ = &edges, groups_ = &groups; }

  // Holds back a swap that has begun, if its blocks are large.
  void add(SwapId id, const Layout& layout, const Meetings& meetings);
  void release(const Meetings& meetings);  // those that may go

 private:
  EdgeSwaps* edges_ = nullptr;
  GroupSwaps* groups_ = nullptr;
  std::set<SwapId> held_;
};

// All but the log and the timeline outlive the swaps.
struct SwapTools {
  // Rounds that blocks may be ahead.
  static constexpr std::size_t kEarly = 8;

  std::size_t early_blocks() const { return kEarly * layout.blocks(); }
  void warn_of_damage(int from, const Frame& frame) const {
    log(Level::warning, damage(from, frame, "round"));
  }
  void release() const { holdback.release(meetings); }
  void send(int to, FrameType type, SwapId id, bool yes) const;  // a word of a protocol

  Transport& transport;
  const Meetings& meetings;
  const Layout& layout;
  WorkerLinks& links;
  CurrentRound& rounds;
  Ledger& ledger;
  Holdback& holdback;
  JumpGuard& guard;
  Log log;
  std::shared_ptr<Timeline> timeline;
};

}  // namespace starling
