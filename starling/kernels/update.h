// The step of combine-then-adapt on a stretch of memory, in one pass: mix with the neighbours, apply the
// local rule, write the wire block for the next exchange, and say whether all of it is finite.
//
//   Wx = x + Sum_j W_ij (q_j - q_i)     in the order of the neighbours given; q is what went over the wire
//   x <- rule(x, Wx, g)                 one file per rule in rules/
//   wire <- x
//
// The difference form adds to one worker exactly what it takes from the other, to the bit, whatever W_ij is.
// Nothing here contracts to fused multiply-adds: the bits are the same on every machine.
#pragma once

#include <cstddef>
#include <span>
#include <variant>

#include "starling/kernels/rules/accum_adam.h"
#include "starling/kernels/rules/adam.h"
#include "starling/kernels/rules/sgd.h"

namespace starling::kernels {

// One neighbour j of worker i.
struct Mix {
  float weight;         // W_ij
  const float* theirs;  // q_j
  const float* mine;    // q_i
};

// A rule's state beside the parameter, zero before the first step. Null where the rule has none: SGD takes m
// with momentum and nothing without, Adam m and v, Accumulated Adam all three (M, V, b).
struct RuleState {
  float* m = nullptr;
  float* v = nullptr;
  float* b = nullptr;
};

// A rule with its coefficients of one step, which each rule's file computes in double from its options and t.
using Step = std::variant<SgdStep, MomentumStep, AdamStep, AccumAdamStep<false>, AccumAdamStep<true>>;

// Updates n parameters in place and copies them to `wire`. Returns whether every parameter written is finite.
//   g      null: no gradient in this step. Mix only: no weight decay, state untouched.
//   wire   null: nothing is sent. May be the `mine` of any Mix; otherwise no two of the arrays overlap.
// Elements are independent, so a caller may split a stretch among threads.
bool update(const Step& step, std::span<const Mix> mixes, float* x, const float* g, RuleState state,
            float* wire, std::size_t n);

}  // namespace starling::kernels
