#include "starling/exchange/average.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "starling/topology/schedules.h"

namespace starling {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();  // no attempt
constexpr std::uint32_t kHorizon = 1000;   // attempts that a peer may be ahead
constexpr std::uint32_t kMostRounds = 64;  // of base-2, for any number of workers

}  // namespace

void Average::begin(AverageId id, Bytes mine, std::set<int> there, Combine combine) {
  if (id.part > 0) {
    if (last_.empty()) return actions_.averaged(std::move(mine), {});
    std::erase_if(there, [&](int peer) { return !last_.contains(peer); });
  }
  running_ = true;
  const AverageId last = std::exchange(id_, id);
  original_ = std::move(mine);
  combine_ = std::move(combine);
  have_result_ = false;
  std::erase_if(there, [&](int peer) { return id.follows(has_quit_[peer]); });
  // Peers that came before me and are not there any more, as I see it, or that came to an operation
  // that I leave out.
  for (const auto& [peer, join] : heard_) {
    const bool is_left_out = last.operation < join.id.operation && join.id.operation < id_.operation;
    if (is_left_out || (join.id == id_ && !there.contains(peer))) tell_end(peer, join.id);
  }
  attempt(0, std::move(there));
}

// Sends my view to all workers in it, and tells those that are not in it any more.
void Average::attempt(std::uint32_t number, std::set<int> participants) {
  for (const int peer : join_.participants) {
    if (join_.id == id_ && !participants.contains(peer)) actions_.send_done(peer, id_, kNone, true);
  }
  join_ = {id_, number, std::move(participants)};
  rounds_ = false;
  shares_.clear();
  done_.clear();
  for (const int peer : join_.participants) {
    if (peer != rank_) actions_.send_join(peer, id_, number, join_.participants);
  }
  proceed();
}

bool Average::has_come(int peer) const {
  const auto heard = heard_.find(peer);
  return heard != heard_.end() && heard->second.id == id_;
}

bool Average::everyone_joined() const {
  return std::ranges::all_of(join_.participants, [&](int peer) {
    return peer == rank_ || (joined(peer) && heard_.at(peer).participants == join_.participants);
  });
}

// The others may go on without me, and without those that I see. Alone I never am the run, unless
// all others have ended while I paused.
bool Average::is_outside() const {
  if (!struck_out_) return false;
  const std::size_t here = 2 * join_.participants.size();
  if (!paused_) return here <= std::max<std::size_t>(company_.size(), 2);
  std::set<int> left;
  std::ranges::set_difference(company_, ended_, std::inserter(left, left.end()));
  return here < left.size() || (here == left.size() && !join_.participants.contains(*left.begin()));
}

void Average::proceed() {
  // Adopts the latest attempt and the smallest set that any worker of P has named.
  for (const int peer : join_.participants) {
    if (!has_come(peer)) continue;
    const auto& [id, number, theirs] = heard_.at(peer);
    std::set<int> both;
    std::set_intersection(join_.participants.begin(), join_.participants.end(), theirs.begin(), theirs.end(),
                          std::inserter(both, both.end()));
    both.insert(rank_);
    const bool smaller = both != join_.participants;
    if (number > join_.attempt || (number == join_.attempt && smaller))
      return attempt(smaller ? std::max(number, join_.attempt + 1) : number, both);
  }
  if (!rounds_) {
    if (!everyone_joined()) return;
    if (is_outside()) return quit();
    rounds_ = true;
    have_result_ = sent_ = false;
    step_ = 0;
    now_ = original_;
    members_ = join_.participants;
    schedule_ = make_schedule("base-2", static_cast<int>(members_.size()));
  }
  run_rounds();
  if (!have_result_) return;
  if (!std::ranges::includes(done_, join_.participants)) return;
  finish(now_, members_);
}

// Runs one period. My share of a step goes out when the step begins; the step ends with the last
// neighbour's share.
void Average::run_rounds() {
  const std::vector<int> ranks(members_.begin(), members_.end());
  const auto me = static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin());
  const auto rank_of = [&](const Neighbour& n) { return ranks[static_cast<std::size_t>(n.rank)]; };
  while (!have_result_) {
    const auto& neighbours = schedule_.at(step_).neighbours[me];
    if (!sent_) {
      sent_ = true;
      for (const Neighbour& n : neighbours) actions_.send_share(rank_of(n), id_, join_.attempt, step_, now_);
    }
    const auto& here = shares_[step_];
    std::vector<Share> shares;
    for (const Neighbour& n : neighbours) {
      const auto share = here.find(rank_of(n));
      if (share == here.end()) return;
      shares.push_back({n.weight, share->second});
    }
    if (!shares.empty()) now_ = std::make_shared<const std::vector<std::byte>>(combine_(*now_, shares));
    shares_.erase(step_);
    sent_ = false;
    if (++step_ < schedule_.rounds.size()) continue;
    have_result_ = true;
    result_ = {id_, join_.attempt};
    done_.insert(rank_);
    for (const int peer : ranks) {
      if (peer != rank_) actions_.send_done(peer, id_, join_.attempt, false);
    }
  }
}

void Average::finish(Bytes values, const std::set<int>& participants) {
  running_ = false;
  last_ = participants;
  if (!participants.empty()) {
    struck_out_ = paused_ = false;
    company_ = participants;
  }
  shares_.clear();
  original_.reset();
  now_.reset();
  actions_.averaged(std::move(values), participants);
}

std::set<int> Average::awaited() const {
  std::set<int> peers;
  if (!running_) return peers;
  for (const int peer : join_.participants) {
    if (peer != rank_ && !(joined(peer) && done_.contains(peer))) peers.insert(peer);
  }
  return peers;
}

std::set<int> Average::late() const {
  const std::set<int> all = awaited();
  std::set<int> late = all;
  std::erase_if(late, [&](int peer) { return joined(peer); });
  return late.empty() ? all : late;
}

void Average::joined(int peer, AverageId id, std::uint32_t attempt, const std::set<int>& participants) {
  if (i_quit_ && id.follows(*i_quit_)) return actions_.send_quit(peer, id);
  if (id < id_ || (id == id_ && !running_)) return tell_end(peer, id);
  if (attempt > kHorizon + (id == id_ ? join_.attempt : 0)) return gone(peer);
  heard_[peer] = {id, attempt, participants};
  if (!running_ || id != id_) return;
  if (!join_.participants.contains(peer)) return tell_end(peer, id);
  proceed();
}

void Average::share(int peer, AverageId id, std::uint32_t attempt, std::uint32_t step, Bytes share) {
  if (!running_ || id != id_ || attempt != join_.attempt || step >= kMostRounds) return;
  if (share->size() != original_->size()) return trouble(peer);
  shares_[step][peer] = std::move(share);
  proceed();
}

void Average::done(int peer, AverageId id, std::uint32_t attempt, bool ended) {
  if (ended && id > id_) was_away();
  if (!running_ || id != id_) return;
  if (!ended) {
    if (attempt == join_.attempt) done_.insert(peer);
    return proceed();
  }
  // The others have ended. Either I had that result and only waited for a lost worker, or I was
  // struck out.
  if (have_result_ && attempt == result_.second) return finish(now_, members_);
  was_away();
  quit();
}

void Average::quit() {
  if (!running_) return;
  i_quit_ = id_;
  for (const int peer : join_.participants) {
    if (peer != rank_) actions_.send_quit(peer, id_);
  }
  finish(original_, {});
}

void Average::has_quit(int peer, AverageId id) {
  has_quit_[peer] = id;
  if (!id_.follows(id) && id < id_) return;
  // It may have joined a later average already.
  if (const auto heard = heard_.find(peer); heard != heard_.end() && heard->second.id <= id)
    heard_.erase(heard);
  strike_out(peer);
}

void Average::gone(int peer) {
  heard_.erase(peer);
  strike_out(peer);
}

// Only if I am done with it, the peer may keep the result of the same attempt.
void Average::tell_end(int peer, AverageId id) {
  const bool done = id == result_.first && (id != id_ || !running_);
  actions_.send_done(peer, id, done ? result_.second : kNone, true);
}

void Average::strike_out(int peer) {
  if (!running_ || !join_.participants.contains(peer)) return;
  std::set<int> rest = join_.participants;
  rest.erase(peer);
  if (!(rounds_ && have_result_)) return attempt(join_.attempt + 1, std::move(rest));
  // I have the result. If all the others have it, the average is over; if not, they will ask for a
  // new attempt.
  tell_end(peer, id_);
  join_.participants = std::move(rest);
  proceed();
}

void Average::trouble(int peer) {
  if (running_ && join_.participants.contains(peer)) attempt(join_.attempt + 1, join_.participants);
}

void Average::up(int peer) {
  if (running_ && join_.participants.contains(peer))
    actions_.send_join(peer, id_, join_.attempt, join_.participants);
}

}  // namespace starling
