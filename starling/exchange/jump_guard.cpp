#include "starling/exchange/jump_guard.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "starling/exchange/links.h"
#include "starling/kernels/update.h"

namespace starling {

// The lower one of two medians.
double JumpGuard::usual_of(const Block& block) const {
  if (block.usual.size() < kEnough) return 0;
  std::vector<double> sorted = block.usual;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

bool JumpGuard::is_jump(const Block& block, double distance) const {
  const double usual = usual_of(block);
  return usual > 0 && !(distance <= options_.factor * usual);  // NaN jumps
}

bool JumpGuard::refuses(int rank, SwapId id, std::uint64_t steps, const SentBlock& theirs,
                        const SentBlock& mine, std::size_t values) {
  if (!is_on() || values == 0) return false;
  const double squares = kernels::best_kernels().squared_distance(theirs.values(), mine.values(), values);
  return refuses(rank, id, steps, std::sqrt(squares / static_cast<double>(values)));
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
  block.forget_jumps();
  // Workers that are equal, as at the start of a run, say nothing about what is usual.
  if (distance == 0 || !std::isfinite(distance)) return false;
  if (std::exchange(its.learned_at, steps) == steps) return false;
  block.usual.push_back(distance);
  if (block.usual.size() > kRemembered) block.usual.erase(block.usual.begin());
  if (block.usual.size() == kEnough && ++known_ == blocks_.size())
    options_.log(Level::info, "jump_guard: the usual distances are known, and jumps are refused from now on");
  return false;
}

bool JumpGuard::count_refusal(int rank, SwapId id, double distance) {
  Block& block = blocks_[id.block];
  Neighbour& its = block.neighbours[rank];
  ++its.refused_in_a_row;
  const bool takes_others = block.taken > std::exchange(its.taken_before, block.taken);
  if (named_.insert(rank).second)
    options_.log(
        Level::warning,
        fmt::format("worker {}'s block {} jumps in {} {}: it is {:.3g} times as far from this "
                    "worker's as usual, and jump_guard is {:g}: not mixed (its later ones are "
                    "counted only)",
                    rank, id.block, options_.counted, id.round, distance / usual_of(block), options_.factor));
  if (std::isfinite(distance)) block.jumps.push_back(distance);
  if (block.jumps.size() > kEnough) block.jumps.erase(block.jumps.begin());
  block.jumpers.insert(rank);
  if (block.jumps.size() == kEnough && std::ranges::includes(block.jumpers, heard_)) {
    block.usual = block.jumps;
    block.forget_jumps();
  }
  return its.refused_in_a_row >= kStays && takes_others;
}

void JumpGuard::was_refused(int rank, SwapId id, double distance, bool others) {
  if (!is_on() || id.block >= blocks_.size() || !options_.neighbours.contains(rank)) return;
  Block& block = blocks_[id.block];
  Neighbour& its = block.neighbours[rank];
  if (others) block.forget_jumps();
  if (others && block.told.insert(rank).second && is_apart(block) && !apart_.exchange(true))
    options_.log(Level::warning,
                 fmt::format("this worker's block {} has jumped away from the others': {} refuse{} it, but "
                             "not those of others",
                             id.block, name_of_workers(block.told), block.told.size() == 1 ? "s" : ""));
  if (id.round <= its.round) return;
  its.round = id.round;
  // It was refused there before it could be measured here.
  if (is_jump(block, distance)) options_.tell(rank, id, distance, count_refusal(rank, id, distance));
}

void JumpGuard::forget_told() {
  for (Block& block : blocks_) block.told.clear();
  apart_ = false;
}

void JumpGuard::committed(int rank, std::uint32_t index) {
  if (!is_on() || blocks_[index].told.erase(rank) == 0) return;
  apart_ = std::ranges::any_of(blocks_, [this](const Block& block) { return is_apart(block); });
}

bool JumpGuard::is_apart(const Block& block) const {
  return !block.told.empty() && 2 * block.told.size() >= options_.neighbours.size();
}

}  // namespace starling
