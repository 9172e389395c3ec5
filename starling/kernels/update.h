// The step of combine-then-adapt on a stretch of memory, in one pass: mix with the neighbours, apply the
// local rule, write the wire block for the next exchange, and say whether all of it is finite.
//
//   Wx = x + Sum_j W_ij (q_j - q_i)     in the order of the neighbours given; q is what went over the wire
//   x <- rule(x, Wx, scale g)           one file per rule in rules/
//   wire <- x                           in the wire's number format (wire.h)
//
// Of a parameter in bf16 or fp16, x is its fp32 master, which lies elsewhere: what is mixed, stepped and sent is the master,
// and the parameter is the master rounded to nearest even.
//
//   x <- p      first, where p is not x rounded: somebody has changed the parameter (and a master of 0 begins so)
//   p <- x      last, rounded
//
// The gradient may be cleared in the same pass (Gradient::cleared).
//
// With modular codes q_j - q_i is what modular.h makes of the two codes.
//
// The difference form adds to one worker exactly what it takes from the other, to the bit, whatever W_ij is.
// Compiled once per instruction set, and chosen at run time. Nothing here contracts to fused multiply-adds, and every
// element is computed alone: the bits are the same on every machine, with every instruction set, however a stretch is
// split among threads.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <variant>

#include "starling/kernels/arguments.h"
#include "starling/kernels/modular.h"
#include "starling/kernels/rules/accum_adam.h"
#include "starling/kernels/rules/adam.h"
#include "starling/kernels/rules/sgd.h"
#include "starling/kernels/wire.h"

namespace starling::kernels {

// A rule with its coefficients of one step, which each rule's file computes in double from its options and t.
using Step = std::variant<SgdStep, MomentumStep, AdamStep, AccumAdamStep<false>, AccumAdamStep<true>>;

// The kernels of one instruction set. They take no locks, allocate nothing and start no threads.
struct Kernels {
  std::string_view isa;

  // Updates n parameters in place and copies them to the wire. Returns whether every parameter is finite, every master,
  // and every value sent (fp16 ends at 65504). The wire may be the `mine` of any Mix, and so may x; otherwise no two of the
  // arrays overlap.
  bool (*update)(const Step& step, std::span<const Mix> mixes, const Parameters& x, Gradient g,
                 RuleState state, WireBlock wire, std::size_t n);

  // Sum of the squares of fp32, bf16 or fp16 in double: finite where all values are. Sums of pieces are no bits of the sum
  // of the whole, so a caller that splits it must split it the same way each time.
  double (*sum_of_squares)(const void* values, starling::Wire format, std::size_t n);

  // Of whole values, wherever they lie: none is infinite or not a number, which a modular code never is.
  bool (*all_finite)(std::span<const std::byte> values, starling::Wire format);

  // What the owner of parameters has made of them since `taken` was their copy goes to x (and to x~, unless that is null), which
  // somebody else changes meanwhile; then parameters and copy become x:
  //
  //   d = scale (p - taken)     x <- x + d     x~ <- x~ + d     p, taken <- x
  //
  // Of a parameter in bf16 or fp16, p is its master, as in update().
  void (*renew)(const Parameters& p, float* taken, float* x, float* x_tilde, float scale, std::size_t n);

  // |a - b|^2 of what went over the same wire, in double; of modular codes by their differences, as they are mixed.
  double (*squared_distance)(const Sent& a, const Sent& b, std::size_t n);
};

// Those that this machine can run, the best first: of avx512, avx2, sse4, neon, and always one that the compiler's own
// target has.
std::span<const Kernels> supported_kernels();

// The first of supported_kernels(), or the one that STARLING_ISA in the environment names at the first call. Throws
// UsageError, naming those that are allowed, for any other name.
const Kernels& best_kernels();

// As best_kernels(), by name; the empty name is the best.
const Kernels& kernels_named(std::string_view isa);

// Kernels::update of best_kernels().
inline bool update(const Step& step, std::span<const Mix> mixes, const Parameters& x, Gradient g,
                   RuleState state, WireBlock wire, std::size_t n) {
  return best_kernels().update(step, mixes, x, g, state, wire, n);
}

// Kernels::all_finite of best_kernels().
inline bool all_finite(std::span<const std::byte> values, starling::Wire format) {
  return best_kernels().all_finite(values, format);
}

}  // namespace starling::kernels
