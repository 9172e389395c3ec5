#include "starling/exchange/current_round.h"

namespace starling {
namespace {

constexpr std::uint64_t kLeastHorizon = 1000;
// Neighbours may be a round ahead at any time. A worker that jumped then would leave out a round
// that the others wait for.
constexpr std::uint64_t kSlack = 1;

}  // namespace

// A neighbour that waits for me is never further ahead than a period or two, or after restart() a
// cycle.
std::uint64_t CurrentRound::horizon() const { return std::max(kLeastHorizon, 2 * layout_.cycle()); }

bool CurrentRound::possible(std::uint64_t round) const {
  return round <= known() + horizon() || round <= monitor_.countable() + horizon();
}

bool CurrentRound::expects(int rank, std::uint64_t round) {
  if (round <= known() + horizon()) return true;
  is_at(rank, round);
  return round <= known() + horizon();
}

// The word that a neighbour went on is as old as my absence: it has to be asked where it is now.
// Such words may still come meanwhile.
void CurrentRound::catch_up(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience,
                            Transport& transport, WorkerLinks& links) {
  std::set<int> asked;
  const auto all_have_said = [&] {
    for (const int rank : went_on_) {
      if (!links.is_connected(rank) || !asked.insert(rank).second) continue;
      transport.post([&links, rank] { links.control(rank, FrameType::where); });
    }
    return went_on_.empty();
  };
  monitor_.wait(lock, patience, all_have_said);
  went_on_.clear();
}

std::uint64_t CurrentRound::begin() {
  const std::uint64_t before = round_;
  round_ = std::max(round_ + 1, jump_to_);
  jumped_ = round_ > before + 1;
  started_ = 0;
  return round_ - before - 1;
}

void CurrentRound::restart(std::uint64_t farthest, std::uint64_t position) {
  round_ = farthest;
  while (round_ % layout_.cycle() != position % layout_.cycle()) ++round_;
  started_ = layout_.blocks();
  jump_to_ = 0;  // the others' earlier round no longer matters
  went_on_.clear();
}

// A neighbour that is past a round in which we meet goes on without me. Others may be far ahead:
// they do not wait for me.
void CurrentRound::is_at(int rank, std::uint64_t round) {
  if (!possible(round)) return;
  const std::lock_guard lock(monitor_.mutex);
  const std::uint64_t next = round_ + 1;
  if (round <= next + kSlack) return;
  const std::uint64_t end = std::min(round - kSlack, next + meetings_.period());
  for (std::uint64_t missed = next; missed < end; ++missed) {
    const std::vector<Partner>& partners = meetings_.at(missed).partners;
    if (std::ranges::find(partners, rank, &Partner::rank) == partners.end()) continue;
    jump_to_ = std::max(jump_to_, round);
    return;
  }
}

void CurrentRound::went_on(int rank) {
  const std::lock_guard lock(monitor_.mutex);
  if (went_on_.insert(rank).second) monitor_.changed->notify_all();
}

void CurrentRound::has_said(int rank) {
  const std::lock_guard lock(monitor_.mutex);
  if (went_on_.erase(rank) != 0) monitor_.changed->notify_all();
}

}  // namespace starling
