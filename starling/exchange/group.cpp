#include "starling/exchange/group.h"

#include <algorithm>
#include <iterator>

namespace starling {
namespace {

std::set<int> without(const std::set<int>& all, const std::set<int>& some) {
  std::set<int> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::inserter(rest, rest.end()));
  return rest;
}

}  // namespace

bool Group::wants_part(int peer, SwapId id) const {
  if (past(id)) return false;
  const auto found = swaps_.find(id);
  if (found == swaps_.end()) return true;
  const Swap& swap = found->second;
  return !swap.aborted && !swap.refused && !swap.parts.contains(peer);
}

bool Group::wants_mean(int peer, SwapId id) const {
  const auto found = swaps_.find(id);
  if (found == swaps_.end() || !found->second.ready) return false;
  return found->second.others.contains(peer) && !found->second.means.contains(peer);
}

bool Group::waits_for(SwapId id, int peer) const {
  const Swap& swap = swaps_.at(id);
  return swap.others.contains(peer) &&
         !(swap.parts.contains(peer) && swap.means.contains(peer) && swap.votes.contains(peer));
}

std::set<int> Group::not_started(SwapId id) const {
  const Swap& swap = swaps_.at(id);
  const std::set<int> late = without(swap.others, swap.parts);
  return swap.held || swap.unsent ? without(late, swap.readies) : late;
}

std::set<int> Group::not_voted(SwapId id) const { return without(swaps_.at(id).others, swaps_.at(id).votes); }

bool Group::moves_before(std::uint64_t round) const {
  return std::ranges::any_of(swaps_, [&](const auto& entry) {
    const auto& [id, swap] = entry;
    return id.round < round && swap.ready && !swap.held && swap.readies == swap.others;
  });
}

void Group::start(SwapId id, std::set<int> others, bool possible, Sending sending) {
  Swap& swap = swaps_[id];  // the others may have been faster
  started_.next[id.block] = id.round + 1;
  swap.ready = true;
  swap.others = std::move(others);
  for (const int peer : swap.others) possible = possible && floors_[peer] <= id.round;
  if (!possible || swap.refused) return abort_all(id);
  if (swap.aborted) return decide(id, Outcome::aborted, !swap.behind);  // the others have been told
  if (sending == Sending::when_all_are_ready) {
    swap.held = true;
  } else {
    actions_.send_parts(id);
  }
  proceed(id);
}

void Group::release(SwapId id) {
  const auto found = swaps_.find(id);
  if (found == swaps_.end() || !std::exchange(found->second.held, false)) return;
  found->second.unsent = true;
  for (const int peer : found->second.others) actions_.send(peer, FrameType::group_ready, id);
  send_if_all_are_ready(id);
}

bool Group::give_up(SwapId id) {
  const auto found = swaps_.find(id);
  if (found == swaps_.end() || !found->second.ready || found->second.voted) return false;
  abort_all(id, true);
  return true;
}

void Group::skip(std::uint64_t round) {
  started_.floor = std::max(started_.floor, round);
  // The others' early messages for the skipped rounds are dropped.
  std::erase_if(swaps_, [&](const auto& entry) { return entry.first.round < round && !entry.second.ready; });
}

void Group::connected(int peer) {
  gone_.erase(peer);
  for (const auto& [id, doubt] : doubts_) {
    if (doubt.unanswered.contains(peer)) actions_.send(peer, FrameType::group_query, id);
  }
}

void Group::disconnected(int peer) {
  for (auto& [id, swap] : swaps_) {
    swap.asking.erase(peer);  // it asks again when it is back
    if (!swap.ready) swap.parts.erase(peer), swap.readies.erase(peer);
  }
  for (const SwapId id : open()) {
    const Swap& swap = swaps_.at(id);
    if (!swap.others.contains(peer)) continue;
    if (!swap.voted) {
      abort_all(id);
    } else if (!swap.votes.contains(peer)) {
      decide(id, Outcome::in_doubt);
    }
  }
}

void Group::gone(int peer) {
  gone_.insert(peer);
  const auto doubts = doubts_;  // resolve() erases
  for (const auto& [id, doubt] : doubts) {
    if (!doubt.unanswered.contains(peer)) continue;
    doubts_.at(id).unanswered.erase(peer);
    if (doubts_.at(id).unanswered.empty()) resolve(id, false);
  }
}

void Group::part(int peer, SwapId id, bool good) {
  if (past(id)) return actions_.send(peer, FrameType::group_abort, id, true);
  Swap& swap = swaps_[id];
  if (good) {
    swap.parts.insert(peer);
    return proceed(id);
  }
  swap.refused = true;
  if (swap.ready && !swap.voted) abort_all(id);  // otherwise when I start
}

void Group::mean(int peer, SwapId id, bool good) {
  if (!wants_mean(peer, id)) return;
  Swap& swap = swaps_.at(id);
  if (!good) return abort_all(id);
  swap.means.insert(peer);
  proceed(id);
}

void Group::frame(int peer, FrameType type, SwapId id, bool yes) {
  const auto found = swaps_.find(id);
  const auto doubt = doubts_.find(id);
  switch (type) {
    case FrameType::group_ready:
      if (past(id)) return actions_.send(peer, FrameType::group_abort, id, true);
      swaps_[id].readies.insert(peer);
      return send_if_all_are_ready(id);
    case FrameType::group_ack:
      // No member can vote before it has my part.
      if (found == swaps_.end() || !found->second.ready) return;
      if (found->second.others.contains(peer)) found->second.votes.insert(peer);
      return proceed(id);
    case FrameType::group_abort:
      // It has not voted: no member has committed.
      if (doubt != doubts_.end()) return resolve(id, false);
      if (past(id)) return;
      if (found != swaps_.end() && found->second.ready) return decide(id, Outcome::aborted, !yes);
      swaps_[id].aborted = true;
      swaps_[id].behind |= yes;
      return;
    case FrameType::group_query:
      if (found == swaps_.end() || !found->second.ready) return answer(peer, id);
      found->second.asking.insert(peer);  // it is told when I know
      return;
    case FrameType::group_outcome:
      if (doubt == doubts_.end()) return;
      if (yes) return resolve(id, true);
      doubt->second.unanswered.erase(peer);
      if (doubt->second.unanswered.empty()) resolve(id, false);
      return;
    default:
      return;
  }
}

void Group::skipped(int peer, std::uint64_t round) {
  floors_[peer] = std::max(floors_[peer], round);
  for (const SwapId id : open()) {
    // A swap that I voted for was decided by the peer before it jumped; its word came first.
    const Swap& swap = swaps_.at(id);
    if (id.round < round && swap.others.contains(peer) && !swap.voted) abort_all(id);
  }
}

void Group::send_if_all_are_ready(SwapId id) {
  Swap& swap = swaps_.at(id);
  if (!swap.unsent || swap.readies != swap.others) return;
  swap.unsent = false;
  actions_.send_parts(id);
}

void Group::proceed(SwapId id) {
  Swap& swap = swaps_.at(id);
  if (!swap.ready || swap.parts != swap.others) return;
  if (!swap.reduced) {
    swap.reduced = true;
    actions_.send_mean(id);
  }
  if (swap.means != swap.others) return;
  if (!swap.voted) {
    swap.voted = true;
    for (const int peer : swap.others) actions_.send(peer, FrameType::group_ack, id);
  }
  if (swap.votes == swap.others) decide(id, Outcome::committed);
}

void Group::abort_all(SwapId id, bool went_on) {
  const Swap& swap = swaps_.at(id);
  const std::set<int> behind = without(not_started(id), swap.readies);
  for (const int peer : swap.others)
    actions_.send(peer, FrameType::group_abort, id, went_on && behind.contains(peer));
  decide(id, Outcome::aborted, true);
}

void Group::decide(SwapId id, Outcome outcome, bool in_pairs) {
  const Swap swap = std::move(swaps_.extract(id).mapped());
  if (outcome == Outcome::committed) committed_[{id.block, swap.others}] = id.round;
  if (outcome == Outcome::aborted) actions_.cancel(id);
  if (outcome == Outcome::in_doubt) {
    doubts_[id] = {swap.others, without(swap.others, gone_)};
    for (const int peer : swap.others) actions_.send(peer, FrameType::group_query, id);
  }
  for (const int peer : swap.asking) answer(peer, id);
  actions_.decided(id, outcome, in_pairs);
}

void Group::resolve(SwapId id, bool committed) {
  const Doubt doubt = std::move(doubts_.extract(id).mapped());
  if (committed) {
    std::uint64_t& last = committed_[{id.block, doubt.others}];
    last = std::max(last, id.round);
    // The members that I told that I do not know.
    for (const int peer : doubt.others) actions_.send(peer, FrameType::group_outcome, id, true);
  }
  actions_.mended(id, committed);
}

// If I am in doubt too, the answer is no; a later correction follows if it turns out otherwise.
void Group::answer(int peer, SwapId id) {
  const bool committed = std::any_of(committed_.begin(), committed_.end(), [&](const auto& entry) {
    return entry.first.first == id.block && entry.second == id.round;
  });
  actions_.send(peer, FrameType::group_outcome, id, committed);
}

}  // namespace starling
