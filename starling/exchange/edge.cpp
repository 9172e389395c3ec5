#include "starling/exchange/edge.h"

#include <algorithm>
#include <utility>

namespace starling {

const char* name_of(Outcome outcome) {
  constexpr const char* kNames[] = {"committed", "aborted", "in doubt"};  // in the order of the values
  return kNames[static_cast<int>(outcome)];
}

bool Edge::wants(SwapId id) const {
  if (past(id) || id.round < peer_floor_) return false;
  const auto found = swaps_.find(id);
  if (found == swaps_.end()) return true;
  const Swap& swap = found->second;
  return swap.direction.receive && !swap.checked && !swap.peer_aborted;
}

bool Edge::has(SwapId id) const {
  const auto found = swaps_.find(id);
  return found != swaps_.end() && found->second.checked;
}

void Edge::start(SwapId id, Direction direction, bool usable, Sending sending) {
  if (!up()) return pass(id, direction);
  Swap& swap = swaps_[id];  // the peer may have been faster
  started_.next[id.block] = id.round + 1;
  swap.ready = true;
  swap.direction = direction;
  pushes_ = pushes_ || !direction.receive;
  if (!usable) {
    actions_.send(FrameType::abort, id);
    return decide(id, Outcome::aborted);
  }
  if (swap.peer_aborted || id.round < peer_floor_) return decide(id, Outcome::aborted);
  if (direction.send && direction.receive && sending == Sending::when_all_are_ready) {
    swap.held = true;
  } else if (direction.send) {
    actions_.send_block(id);
  }
  vote(id, swap);
}

void Edge::pass(SwapId id, Direction direction) {
  // A worker that only receives says nothing before it has my block: it would wait.
  const bool unheard = direction.send && !direction.receive;
  pushes_ = pushes_ || unheard;
  if (unheard && connected_ && !swaps_.contains(id)) actions_.send(FrameType::abort, id);
  settle(id);
  actions_.decided(id, Outcome::aborted);
}

void Edge::settle(SwapId id) {
  const bool peer_waits = swaps_.erase(id) != 0;  // it has begun already
  if (peer_waits && connected_) actions_.send(FrameType::abort, id, true);
  std::uint64_t& next = started_.next[id.block];
  next = std::max(next, id.round + 1);  // gossip may refuse a swap that a later one has overtaken
}

bool Edge::give_up(SwapId id) {
  const auto found = swaps_.find(id);
  if (found == swaps_.end() || !found->second.ready) return false;
  Swap& swap = found->second;
  if (swap.voted) {
    if (!swap.direction.receive && !std::exchange(swap.withdrawn, true))
      actions_.send(FrameType::abort, id, true);
    return false;
  }
  actions_.send(FrameType::abort, id, true);
  decide(id, Outcome::aborted);
  return true;
}

void Edge::skip(std::uint64_t round) {
  started_.floor = std::max(started_.floor, round);
  if (connected_) actions_.send(FrameType::skip, {round, 0});
  // The peer's early messages for the skipped rounds are dropped.
  std::erase_if(swaps_, [&](const auto& entry) { return entry.first.round < round && !entry.second.ready; });
}

void Edge::connected() {
  connected_ = true;
  for (const SwapId id : doubts_) actions_.send(FrameType::query, id);
  if (pushes_ || started_.floor > 0) settled();
}

// All swaps that I had started, passed or skipped are decided. A worker that only receives may not
// have begun one, and would wait for my block.
void Edge::settled() {
  const auto by_round = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto least = std::ranges::min_element(started_.next, by_round);
  const std::uint64_t all = std::max(started_.floor, least == started_.next.end() ? 0 : least->second);
  actions_.send(FrameType::skip, {all, 0});
  for (const auto& [block, next] : started_.next) {
    if (next > all) actions_.send(FrameType::abort, {next - 1, block});
  }
}

void Edge::disconnected() {
  connected_ = false;
  const auto swaps = swaps_;  // decide() erases
  for (const auto& [id, swap] : swaps) {
    if (!swap.ready) {
      swaps_.erase(id);
    } else {
      decide(id, swap.voted ? Outcome::in_doubt : Outcome::aborted);
    }
  }
}

void Edge::block(SwapId id, bool good) {
  if (!wants(id)) {
    if (past(id)) actions_.send(FrameType::abort, id, true);
    return;
  }
  Swap& swap = swaps_[id];
  if (good) {
    swap.checked = true;
    return vote(id, swap);
  }
  actions_.send(FrameType::abort, id);
  if (swap.ready) return decide(id, Outcome::aborted);
  swap.peer_aborted = true;  // not started yet: I will not take part
}

void Edge::frame(FrameType type, SwapId id, bool yes) {
  const auto found = swaps_.find(id);
  Swap* const swap = found == swaps_.end() ? nullptr : &found->second;
  switch (type) {
    case FrameType::ready:
      if (past(id)) return actions_.send(FrameType::abort, id, true);
      swaps_[id].peer_ready = true;
      return send_if_both_are_ready(id, swaps_[id]);
    case FrameType::ack:
      if (swap == nullptr && !past(id))
        swaps_[id].peer_voted = true;  // a directed edge: the sender votes at once
      if (swap == nullptr) return;
      swap->peer_voted = true;
      if (swap->voted) decide(id, Outcome::committed);
      return;
    case FrameType::abort:
      // It only sends, has voted at once, and asks for its vote back: I have not voted.
      if (swap != nullptr && swap->peer_voted) actions_.send(FrameType::abort, id);
      if (swap != nullptr && swap->ready) return decide(id, Outcome::aborted);
      if (!past(id)) swaps_[id].peer_aborted = true;
      return;
    case FrameType::skip:
      peer_floor_ = std::max(peer_floor_, id.round);
      for (const SwapId open : this->open()) {
        // The peer decided a swap that I voted for before it jumped, and its word came first. But a
        // worker that only sends has voted before the peer began; if no word came, there will be
        // none.
        const Swap& its = swaps_.at(open);
        if (open.round < id.round && (!its.voted || !its.direction.receive)) decide(open, Outcome::aborted);
      }
      return;
    case FrameType::query:
      return answer(id);
    case FrameType::outcome:
      if (doubts_.erase(id) == 0) return;
      if (yes) committed_[id.block] = id;
      return actions_.mended(id, yes);
    default:
      return;
  }
}

void Edge::release(SwapId id) {
  const auto found = swaps_.find(id);
  if (found == swaps_.end() || !std::exchange(found->second.held, false)) return;
  found->second.unsent = true;
  actions_.send(FrameType::ready, id);
  send_if_both_are_ready(id, found->second);
}

bool Edge::moves_before(std::uint64_t round) const {
  return std::ranges::any_of(swaps_, [&](const auto& entry) {
    const auto& [id, swap] = entry;
    return id.round < round && swap.ready && swap.peer_ready && !swap.held;
  });
}

void Edge::send_if_both_are_ready(SwapId id, Swap& swap) {
  if (swap.unsent && swap.peer_ready) {
    swap.unsent = false;
    actions_.send_block(id);
  }
}

void Edge::vote(SwapId id, Swap& swap) {
  if (!swap.ready || swap.voted || (swap.direction.receive && !swap.checked)) return;
  swap.voted = true;
  actions_.send(FrameType::ack, id);
  if (swap.peer_voted) decide(id, Outcome::committed);
}

void Edge::decide(SwapId id, Outcome outcome) {
  swaps_.erase(id);
  if (outcome == Outcome::committed) committed_[id.block] = id;
  if (outcome == Outcome::in_doubt) doubts_.insert(id);
  if (outcome == Outcome::aborted) actions_.cancel_block(id);
  actions_.decided(id, outcome);
}

// The peer is in doubt. If I am too, neither of us commits.
void Edge::answer(SwapId id) {
  const auto last = committed_.find(id.block);
  actions_.send(FrameType::outcome, id, last != committed_.end() && last->second == id);
}

}  // namespace starling
