// The step of combine-then-adapt on a stretch of memory, in one pass: mix with the neighbours,
// apply the local rule, write the wire block for the next exchange, and report whether all of it is
// finite.
//
//   Wx = x + Sum_j W_ij (q_j - q_i)     in the order of the neighbours given; q went over the wire
//   x <- rule(x, Wx, scale g)           one file per rule in rules/
//   outgoing <- x                       in the wire's number format (wire.h)
//
// A parameter p in bf16 or fp16 has an fp32 master x elsewhere. The master is mixed, stepped and
// sent; the parameter is the master, rounded to nearest even.
//
//   x <- p      first, where p is not x rounded: p was changed (a master of 0 begins so too)
//   p <- x      last, rounded
//
// The same pass may clear the gradient (Gradient::cleared). With modular codes modular.h computes
// q_j - q_i from the two codes.
//
// The difference form adds to one worker exactly what it takes from the other, to the bit, for
// every W_ij. The kernels are compiled once per instruction set and chosen at run time. Nothing
// here contracts to fused multiply-adds, and every element is computed alone. So the bits are the
// same on every machine, with every instruction set, and for every split of a stretch among
// threads.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <variant>

#include "starling/kernels/arguments.h"
#include "starling/kernels/modular.h"
#include "starling/kernels/rules/all.h"
#include "starling/kernels/wire.h"

namespace starling::kernels {

// The coefficients of one step of a rule. Its file computes them in double from the options and t.
template <class, class... Steps>
using StepOf = std::variant<Steps...>;
#define STARLING_STEP(entry, type) , type
using Step = StepOf<void STARLING_EACH_STEP(STARLING_STEP)>;
#undef STARLING_STEP

// The kernels of one instruction set. They take no locks, allocate nothing and start no threads.
struct Kernels {
  std::string_view isa;

  // Updates n parameters in place and copies them to `outgoing`. Returns whether every parameter,
  // every master and every value sent is finite (fp16 ends at 65504). `outgoing` and x may each be
  // the `mine` of any Mix; otherwise no two of the arrays overlap. Without a gradient no rule is
  // applied: pass Step{}.
  bool (*update)(const Step& step, std::span<const Mix> mixes, const Parameters& x, Gradient g,
                 RuleState state, WireBlock outgoing, std::size_t n);

  // Sum of the squares of fp32, bf16 or fp16 in double: finite if all values are. The sums of
  // pieces do not add up to the bits of the whole's sum, so a caller must split it the same way
  // each time.
  double (*sum_of_squares)(const void* values, starling::Wire format, std::size_t n);

  // Whether no value is infinite or NaN. The values may lie at any address. A modular code is
  // always finite.
  bool (*all_finite)(std::span<const std::byte> values, starling::Wire format);

  // Adds the owner's change of the parameters since `taken` was their copy to x, and to x~ unless
  // that is null. Others change x meanwhile. Then sets the parameters and the copy to x:
  //
  //   d = scale (p - taken)     x <- x + d     x~ <- x~ + d     p, taken <- x
  //
  // For a parameter in bf16 or fp16, p is its master, as in update().
  void (*renew)(const Parameters& p, float* taken, float* x, float* x_tilde, float scale, std::size_t n);

  // |a - b|^2 in double of two blocks of the same wire. Modular codes take their differences, as in
  // mixing.
  double (*squared_distance)(const Sent& a, const Sent& b, std::size_t n);
};

// The kernels that this machine can run, the best first: avx512, avx2, sse4 or neon, and always
// those for the compiler's own target.
std::span<const Kernels> supported_kernels();

// The first of supported_kernels(), or those that STARLING_ISA in the environment names at the
// first call. Throws UsageError, with the allowed names, for any other name.
const Kernels& best_kernels();

// As best_kernels(), by name; the empty name means the best.
const Kernels& kernels_named(std::string_view isa);

// Kernels::update of best_kernels().
inline bool update(const Step& step, std::span<const Mix> mixes, const Parameters& x, Gradient g,
                   RuleState state, WireBlock outgoing, std::size_t n) {
  return best_kernels().update(step, mixes, x, g, state, outgoing, n);
}

// Kernels::all_finite of best_kernels().
inline bool all_finite(std::span<const std::byte> values, starling::Wire format) {
  return best_kernels().all_finite(values, format);
}

}  // namespace starling::kernels
