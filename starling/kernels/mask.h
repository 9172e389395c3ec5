// random-k: the values of a block that cross the link in a round. Both ends of every edge choose
// the same ones. (With a shared seed as in SAPS-PSGD, Tang et al. 2020, and GossipFL, 2023; chosen
// without replacement.)
//
//   run      256 adjacent values, counted from the block's beginning; the last may be shorter
//   turn     of every `one_in` runs one is chosen, the turn-th: one value in `one_in` is sent
//   place    of the round in the period of the schedule; pass: the number of periods before it
//
//   turn = (first + stride * pass) mod one_in       first and stride: random by block and place
//
// The stride has no divisor in common with one_in. Whatever the schedule's period, each place, and
// so each edge, sees every value exactly once in one_in periods. Different places and blocks are
// independent: a value's turn in one round says nothing about the next. A worker needs only the
// round's number.
//
// The mask chooses runs and not single values, so that the update stays simple. Each stretch of
// memory is either mixed and sent, or neither, and the kernel sees ordinary arrays. The mean
// agreement of two workers depends on how often each value is sent, not on which values are sent
// together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "starling/core/random.h"

namespace starling {

struct Mask {
  // Values: whole cache lines in every wire, and enough for a call of the kernel.
  static constexpr std::size_t kRun = 256;
  static constexpr int kMost = 1024;  // largest one_in

  std::uint32_t one_in = 1;  // 1: all values are sent
  std::uint32_t turn = 0;    // below one_in

  static Mask of_round(std::uint32_t one_in, std::uint32_t block, std::uint64_t place, std::uint64_t pass) {
    if (one_in == 1) return {};
    const std::uint64_t random = random_bits({0x6b2d6d6f646e6172u, block, place});
    std::uint64_t stride = 1 + random % one_in;
    while (std::gcd(stride, std::uint64_t{one_in}) != 1) ++stride;
    return {one_in, static_cast<std::uint32_t>(((random >> 32) + stride * (pass % one_in)) % one_in)};
  }

  bool operator==(const Mask&) const = default;
  // Different masks have different words.
  std::uint64_t word() const { return std::uint64_t{one_in - 1} << 32 | turn; }

  bool chooses(std::size_t value) const { return value / kRun % one_in == turn; }
  // How many of a block's first n values are chosen. They precede value n in the wire block.
  std::size_t chosen_of(std::size_t n) const {
    const std::size_t all = n / (kRun * one_in) * kRun, rest = n % (kRun * one_in);
    return all + std::min(rest - std::min(rest, turn * kRun), kRun);
  }
  // The end of the stretch around a value that is chosen as a whole or not at all.
  std::size_t stretch_end(std::size_t value) const {
    if (one_in == 1) return static_cast<std::size_t>(-1);
    const std::size_t run = value / kRun, now = run % one_in;
    if (now == turn) return (run + 1) * kRun;
    return (run - now + turn + (now < turn ? 0 : one_in)) * kRun;
  }
};

}  // namespace starling
