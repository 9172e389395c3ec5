// What one launch works on: a table of segments, one below the other, each with its own coefficients. All pointers are the
// device's.
//
// This file is compiled for GPUs too (update.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/kernels/arguments.h"
#include "starling/kernels/rules/accum_adam.h"
#include "starling/kernels/rules/adam.h"
#include "starling/kernels/rules/sgd.h"

namespace starling::kernels::cuda {

// A thread of the GPU takes four values that lie side by side, as many bytes of fp32 as it can read at once; four times.
inline constexpr std::uint32_t kSide = 4;
inline constexpr std::uint32_t kTimes = 4;
inline constexpr std::uint32_t kThreads = 256;                      // in a block of threads
inline constexpr std::uint32_t kPiece = kThreads * kSide * kTimes;  // values of a block of threads

// A stretch of memory with the arguments of Kernels::update (kernels/update.h), which mean the same here.
template <class Rule>
struct Segment {
  Rule rule;
  Parameters x;
  Gradient g;
  RuleState state;
  WireBlock wire;  // `stream` says nothing here
  std::uint64_t n;
  // Its neighbours in the table of all segments' Mixes.
  std::uint32_t first_mix, mixes;
  std::uint32_t first_block;  // of threads: lay_out()
};

// A stretch of a block that gossip holds (gossip/held_block.h): first the momentum is mixed in, then it is renewed with the
// arguments of Kernels::renew.
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

// Of what tables are made of.
inline constexpr std::size_t kTableSizes[] = {sizeof(Mix),
                                              sizeof(Renewal),
                                              sizeof(Segment<SgdStep>),
                                              sizeof(Segment<MomentumStep>),
                                              sizeof(Segment<AdamStep>),
                                              sizeof(Segment<AccumAdamStep<false>>),
                                              sizeof(Segment<AccumAdamStep<true>>)};

// Gives each segment its blocks of threads, and returns how many there are in all. The segments' order stays.
template <class Row>
std::uint32_t lay_out(Row* segments, std::size_t count) {
  std::uint64_t blocks = 0;
  for (std::size_t s = 0; s < count; ++s) {
    segments[s].first_block = static_cast<std::uint32_t>(blocks);
    blocks += (segments[s].n + kPiece - 1) / kPiece;
  }
  return static_cast<std::uint32_t>(blocks);
}

}  // namespace starling::kernels::cuda
