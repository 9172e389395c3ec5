// The arguments of one launch: a table of segments, each with its own coefficients. All pointers
// are the device's. GPUs compile this file too (update.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/kernels/arguments.h"
#include "starling/kernels/rules/all.h"

namespace starling::kernels::cuda {

// A thread of the GPU takes four adjacent values, as many bytes of fp32 as it can read at once,
// four times.
inline constexpr std::uint32_t kSide = 4;
inline constexpr std::uint32_t kTimes = 4;
inline constexpr std::uint32_t kThreads = 256;                               // in a block of threads
inline constexpr std::uint32_t kPerThreadBlock = kThreads * kSide * kTimes;  // values of a block of threads

// A stretch of memory with the arguments of Kernels::update (kernels/update.h).
template <class Rule>
struct Segment {
  Rule rule;
  Parameters x;
  Gradient g;
  RuleState state;
  WireBlock outgoing;  // `stream` has no effect here
  std::uint64_t n;
  // Its neighbours in the table of all segments' Mixes.
  std::uint32_t first_mix, mixes;
  std::uint32_t first_block;  // of threads: lay_out()
};

// A stretch of a block that gossip holds (gossip/held_block.h): first the momentum is mixed in,
// then Kernels::renew follows, with its arguments.
struct Renewal {
  Parameters p;  // without values: the momentum only
  float* taken;
  float* x;
  float* x_tilde;  // null: none
  float scale;
  float momentum;  // the share of x~ in x: momentum_share() (gossip/a2cid2.h)
  std::uint64_t n;
  std::uint32_t first_block;  // of threads: lay_out()
};

// The sizes of the rows of all tables.
#define STARLING_STEP(entry, type) , sizeof(Segment<type>)
inline constexpr std::size_t kTableSizes[] = {sizeof(Mix), sizeof(Renewal) STARLING_EACH_STEP(STARLING_STEP)};
#undef STARLING_STEP

// Gives each segment its blocks of threads, and returns how many there are in all. The segments'
// order stays.
template <class Row>
std::uint32_t lay_out(Row* segments, std::size_t count) {
  std::uint64_t blocks = 0;
  for (std::size_t s = 0; s < count; ++s) {
    segments[s].first_block = static_cast<std::uint32_t>(blocks);
    blocks += (segments[s].n + kPerThreadBlock - 1) / kPerThreadBlock;
  }
  return static_cast<std::uint32_t>(blocks);
}

}  // namespace starling::kernels::cuda
