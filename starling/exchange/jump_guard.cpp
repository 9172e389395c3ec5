#include "starling/exchange/jump_guard.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "starling/exchange/links.h"
#include "starling/kernels/update.h"

namespace starling {

JumpGuard::JumpGuard(Options options) : options_(std::move(options)), blocks_(options_.blocks) {
  for (std::size_t b = 0; b < std::min(blocks_.size(), options_.usual.size()); ++b) {
    blocks_[b].usual = options_.usual[b];
    known_ += blocks_[b].usual.is_known() ? 1 : 0;
  }
}

double JumpGuard::distance_of(const SentBlock& theirs, const SentBlock& mine, std::size_t values) {
  const double squares = kernels::best_kernels().squared_distance(theirs.values(), mine.values(), values);
  return std::sqrt(squares / static_cast<double>(values));
}

bool JumpGuard::refuses(int rank, SwapId id, std::uint64_t steps, double distance) {
  if (!is_on()) return false;
  Block& block = blocks_[id.block];
  Neighbour& its = block.neighbours[rank];
  its.round = id.round;
  heard_.insert(rank);
  if (is_jump(block, distance)) {
    ++refused_;
    options_.tell(rank, id, distance, count_refusal(rank, id, distance));
    return true;
  }
  its.refused_in_a_row = 0;
  ++block.taken;
  if (block.far.erase(rank) > 0) judge();
  std::unique_lock lock(mutex_);
  block.forget_refused();
  const bool was_known = block.usual.is_known();
  // Workers that are equal, as at the start of a run, say nothing about what is usual.
  if (its.learned_at == steps || !block.usual.learn(distance)) return false;
  its.learned_at = steps;
  const bool is_news = !was_known && block.usual.is_known() && ++known_ == blocks_.size();
  lock.unlock();  // the log is the caller's
  if (is_news)
    options_.log(Level::info, "jump_guard: the usual distances are known, and jumps are refused from now on");
  return false;
}

bool JumpGuard::count_refusal(int rank, SwapId id, double distance) {
  Block& block = blocks_[id.block];
  Neighbour& its = block.neighbours[rank];
  ++its.refused_in_a_row;
  const bool takes_others = block.taken > std::exchange(its.taken_before, block.taken);
  if (named_.insert(rank).second)
    options_.log(Level::warning,
                 fmt::format("worker {}'s block {} jumps in {} {}: it is {:.3g} times as far from this "
                             "worker's as usual, and jump_guard is {:g}: not mixed (its later ones are "
                             "counted only)",
                             rank, id.block, options_.counted, id.round, distance / block.usual.value(),
                             options_.factor));
  block.jumpers.insert(rank);
  block.far.insert(rank);
  const std::lock_guard lock(mutex_);
  if (block.usual.refuse(distance) && std::ranges::includes(block.jumpers, heard_)) {
    block.usual.take_refused();
    block.jumpers.clear();
    block.far.clear();
  }
  judge();
  return its.refused_in_a_row >= kStays && takes_others;
}

void JumpGuard::was_refused(int rank, SwapId id, double distance, bool others) {
  if (!is_on() || id.block >= blocks_.size() || !options_.neighbours.contains(rank)) return;
  Block& block = blocks_[id.block];
  Neighbour& its = block.neighbours[rank];
  if (others) {
    const std::lock_guard lock(mutex_);
    block.forget_refused();
  }
  if (others && block.told.insert(rank).second && is_apart(block) &&
      standing_.exchange(Standing::apart) != Standing::apart)
    options_.log(Level::warning,
                 fmt::format("this worker's block {} has jumped away from the others': {} refuse{} it, but "
                             "not those of others",
                             id.block, name_of_workers(block.told), block.told.size() == 1 ? "s" : ""));
  if (id.round <= its.round) return;
  its.round = id.round;
  // It was refused there before it could be measured here.
  if (is_jump(block, distance)) options_.tell(rank, id, distance, count_refusal(rank, id, distance));
}

void JumpGuard::lost(int rank) {
  heard_.erase(rank);
  if (options_.neighbours.contains(rank)) gone_.insert(rank);
  for (Block& block : blocks_) block.far.erase(rank);
  judge();
}

void JumpGuard::forget_jumps() {
  for (Block& block : blocks_) {
    block.told.clear();
    block.far.clear();
  }
  standing_ = Standing::usual;
}

std::vector<UsualDistance> JumpGuard::usual() const {
  const std::lock_guard lock(mutex_);
  std::vector<UsualDistance> all;
  for (const Block& block : blocks_) all.emplace_back(block.usual).forget_refused();
  return all;
}

void JumpGuard::committed(int rank, std::uint32_t index) {
  if (!is_on()) return;
  Block& block = blocks_[index];
  if (block.told.erase(rank) + block.far.erase(rank) > 0) judge();
}

bool JumpGuard::is_doubtful(const Block& block) const {
  return 2 * block.far.size() > options_.neighbours.size() - gone_.size();
}

bool JumpGuard::is_apart(const Block& block) const {
  return !block.told.empty() && 2 * block.told.size() >= options_.neighbours.size();
}

void JumpGuard::judge() {
  Standing worst = Standing::usual;
  for (const Block& block : blocks_) {
    if (is_apart(block)) worst = Standing::apart;
    if (worst == Standing::usual && is_doubtful(block)) worst = Standing::doubtful;
  }
  standing_ = worst;
}

}  // namespace starling
