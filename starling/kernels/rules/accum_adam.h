// Accumulated Adam ("From Promise to Practice", arXiv 2410.11998), with Adam's or AdamW's weight decay:
//
//   d = g + l2 x                                        (AccumAdam: l2 = weight decay; AccumAdamW: l2 = 0)
//   m = beta1 M + (1 - beta1) d                         (m and v are of this step only)
//   v = beta2 V + (1 - beta2) d^2
//   u = [m / (1 - beta1^k)] / [sqrt(v / (1 - beta2^k)) + eps]
//   x <- keep Wx - lr u                                 (AccumAdam: keep = 1; AccumAdamW: keep = 1 - lr * decay)
//   b <- b + d / s
//   at the end of a window, t mod s = 0:
//     M <- beta1 M + (1 - beta1) b
//     V <- beta2 V + (1 - beta2) b^2                    (the square of the window's MEAN gradient)
//     b <- 0
//
// x own parameter before mixing        Wx the mixed parameter    g gradient at x
// M, V moments, b accumulator (state)  s steps in a window       lr learning rate
// t steps of this parameter, this one included                   k = ceil(t / s)
//
// With s = 1 this is Adam, bit for bit. Weight decay: see adam.h.
#pragma once

#include <cstdint>

#include "starling/kernels/rules/adam.h"

namespace starling::kernels {

// `kWindowEnd` is t mod s = 0, the step that ends a window: a template parameter, since a branch in the loop
// would keep it from being vectorized, and the other s - 1 steps need not write M and V.
template <bool kWindowEnd>
struct AccumAdamStep {
  static constexpr int kStates = 3;
  AdamStep adam;  // coefficients only, at k
  float share;    // 1 / s

  float operator()(float x, float Wx, float g, float& M, float& V, float& b) const {
    const auto& [beta1, gain1, beta2, gain2, l2, keep, lr_u] = adam;
    const float d = g + l2 * x;
    const float m = beta1 * M + gain1 * d;
    const float v = beta2 * V + gain2 * (d * d);
    b = b + d * share;
    if constexpr (kWindowEnd) {
      M = beta1 * M + gain1 * b;
      V = beta2 * V + gain2 * (b * b);
      b = 0;
    }
    return keep * Wx - lr_u(m, v);
  }
};

// Returns the variant `Step` that holds the step of the kind that t asks for. `decoupled`: AdamW's weight
// decay.
template <class Step, class Options>
Step accum_adam_step(const Options& o, bool decoupled, std::int64_t t) {
  const std::int64_t s = o.window;
  const std::int64_t k = (t + s - 1) / s;
  const AdamStep adam = AdamStep::at(o, decoupled, k);
  const float share = static_cast<float>(1.0 / static_cast<double>(s));
  if (t % s == 0) return AccumAdamStep<true>{.adam = adam, .share = share};
  return AccumAdamStep<false>{.adam = adam, .share = share};
}

}  // namespace starling::kernels
