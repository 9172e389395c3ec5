// The wires int8 and int4: modular codes.
//
//   delta   the step of a worker's grid for one block, 2^exponent. The worker chooses it for each
//           block that it writes
//   k       the grid point nearest to x: x / delta, rounded to even
//   code    k modulo 2^b; b is 8 or 4
//   D       the difference of two workers in steps, from their codes alone: on the finer of the two
//           grids, modulo 2^b, from -2^(b-1) + 1 to 2^(b-1) - 1
//
// Mixing is x += W delta D. This is x_j - x_i up to the rounding of both, if it lies within 2^(b-1)
// steps, however large x itself is. Beyond that it is a wrong number, but D_ij = -D_ji for every
// pair of codes and of grids. One worker gets what the other loses, so symmetric edges keep the
// sum. (Directed edges keep it only while nothing wraps.)
//
// Sums detect differences far beyond the range. A block carries Sum k; if Sum D is not the
// difference of two such sums, some element has wrapped. From this, and from the largest |D|, Grid
// chooses the next step.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "starling/kernels/codes.h"
#include "starling/kernels/format.h"

namespace starling {

// The trailer behind the codes of a block.
struct Trailer {
  std::int32_t exponent = 0;
  std::uint32_t sum = 0;  // of all k, modulo 2^24
};

// The size on the link of a block of n values.
constexpr std::size_t block_bytes(Wire wire, std::size_t n) {
  return bytes_of(wire, n) + (is_modular(wire) ? sizeof(Trailer) : 0);
}

// The trailer of a whole block; all zero if its wire has none.
inline Trailer trailer_of(std::span<const std::byte> block, Wire wire) {
  Trailer trailer;
  if (is_modular(wire)) std::memcpy(&trailer, block.last(sizeof trailer).data(), sizeof trailer);
  return trailer;
}

inline void set_trailer(std::span<std::byte> block, Wire wire, Trailer trailer) {
  if (is_modular(wire)) std::memcpy(block.last(sizeof trailer).data(), &trailer, sizeof trailer);
}

// The choice of the grid for a worker's block: the finest one that has held all measurements of the
// schedule's last period, with a margin. A pass's measurements apply from the block on that is
// written in the next pass. Too fine a grid does less harm than too coarse a one: a wrapped value
// moves x by less than the range.
class Grid {
 public:
  // Exponents. On finer grids, adjacent floats of large parameters would be 2^24 steps apart, which
  // no sum shows.
  static constexpr int kFinest = -30, kCoarsest = 20;
  static constexpr int kAfterWrap = 3;            // the exponent's increase
  static constexpr std::size_t kMostRounds = 16;  // most remembered rounds, however long the period

  explicit Grid(Wire wire, std::size_t period = 1) : sent_(first(wire)), wanted_{sent_} { remember(period); }
  // A range of 2^-10: workers start equal, and their first steps are small.
  static constexpr int first(Wire wire) { return -10 - range(wire); }
  static constexpr bool allows(int exponent) { return kFinest <= exponent && exponent <= kCoarsest; }
  // Sets the schedule's number of rounds. A worker may be near to its neighbour of one round, and
  // far from that of the next.
  void remember(std::size_t period) {
    wanted_.resize(std::clamp<std::size_t>(period, 1, kMostRounds), next_exponent());
  }

  // The exponent for the block that is written now.
  int next() { return sent_ = next_exponent(); }
  // The exponent of the last written block, for writing it again.
  int again() const { return sent_; }

  // The measurement of one pass with all neighbours.
  class Wanted {
   public:
    void add(Wire wire, const Trailer& theirs, const Trailer& mine, const kernels::Measured& measured) {
      if (!is_modular(wire)) return;
      const kernels::Pair pair(wire, theirs.exponent, mine.exponent);
      if (!pair.mixes) return at_least(std::max(theirs.exponent, mine.exponent));
      // 0 may be nearly 1.
      const auto largest = static_cast<std::uint32_t>(std::max(measured.largest, 1));
      at_least(pair.exponent + std::bit_width(margin(wire) * largest - 1) - range(wire));
      const std::uint32_t difference =
          (theirs.sum << (theirs.exponent - pair.exponent)) - (mine.sum << (mine.exponent - pair.exponent));
      if ((difference - measured.sum) % (1u << 24) != 0) at_least(pair.exponent + kAfterWrap);
    }
    std::optional<int> exponent() const { return exponent_; }

   private:
    void at_least(int exponent) { exponent_ = std::max(exponent, exponent_.value_or(exponent)); }
    std::optional<int> exponent_;
  };
  void follow(const Wanted& wanted) {
    if (!wanted.exponent()) return;
    std::rotate(wanted_.begin(), wanted_.begin() + 1, wanted_.end());
    wanted_.back() = std::clamp(*wanted.exponent(), kFinest, kCoarsest);
  }

  // State to save, and to set later: exponents, the same number for every grid of this schedule.
  std::vector<int> state() const {
    std::vector<int> state{sent_};
    state.insert(state.end(), wanted_.begin(), wanted_.end());
    return state;
  }
  void set_state(std::span<const int> state) {
    sent_ = state.front();
    wanted_.assign(state.begin() + 1, state.end());
  }

 private:
  static constexpr int range(Wire wire) { return kernels::code_bits(wire) - 1; }  // 2^range steps
  // The range over the largest measured disagreement. int4 has not enough bits for 4.
  static constexpr std::uint32_t margin(Wire wire) { return wire == Wire::int8 ? 4 : 2; }
  int next_exponent() const { return *std::max_element(wanted_.begin(), wanted_.end()); }
  int sent_;
  std::vector<int> wanted_;  // in the last rounds, the latest at the end
};

}  // namespace starling
