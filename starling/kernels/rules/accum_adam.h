// Accumulated Adam ("From Promise to Practice", arXiv 2410.11998), and the step that it shares with
// AccumAdamW (accum_adamw.h):
//
//   d = g + l2 x                              (AccumAdam: l2 = weight decay; AccumAdamW: l2 = 0)
//   m = beta1 M + (1 - beta1) d               (m and v are of this step only)
//   v = beta2 V + (1 - beta2) d^2
//   u = [m / (1 - beta1^k)] / [sqrt(v / (1 - beta2^k)) + eps]
//   x <- keep Wx - lr u                       (AccumAdam: keep = 1; AccumAdamW: 1 - lr * decay)
//   b <- b + d / s
//   at the end of a window, t mod s = 0:
//     M <- beta1 M + (1 - beta1) b
//     V <- beta2 V + (1 - beta2) b^2          (the square of the window's MEAN gradient)
//     b <- 0
//
// x own parameter before mixing        Wx the mixed parameter    g gradient at x
// M, V moments, b accumulator (state)  s steps in a window       lr learning rate
// t steps of this parameter, this one included                   k = ceil(t / s)
//
// The kept moments move once per window, by the mean gradient of the window. Each step uses them
// and its own gradient. With s = 1 this is Adam, bit for bit.
#pragma once

#include <cstdint>

#include "starling/kernels/rules/adam.h"

namespace starling::kernels {

// kWindowEnd: t mod s = 0, the step ends a window. It is a template parameter, because a branch in
// the loop would prevent vectorization. The other s - 1 steps need not write M and V.
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

// Returns step t as the variant Step. `decoupled`: with AdamW's weight decay.
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

#define STARLING_STEPS_accum_adam(f) \
  f(starling_accum_adam, AccumAdamStep<false>) f(starling_accum_adam_window_end, AccumAdamStep<true>)

#ifndef __CUDACC_RTC__
#define STARLING_RULE_accum_adam AccumAdam

namespace starling {

template <bool kAdamW>
struct AccumAdamInfo : AdamInfo<kAdamW> {
  using Adams = AdamInfo<kAdamW>;
  static constexpr std::array kStates{Adams::kStates[0], Adams::kStates[1],
                                      RuleStateName{"b", "accumulated_grad"}};

  template <class O, class F>
  static void each_option(O& o, const F& f) {
    Adams::each_option(o, f);
    f(RuleOption{"window", between(1, 1 << 20), "steps from one update of the kept moments to the next"},
      o.window);
  }
  template <class Step, class O>
  static Step step(const O& o, std::int64_t t) {
    return kernels::accum_adam_step<Step>(o, kAdamW, t);
  }
};

struct AccumAdam {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  int window = 8;
  bool operator==(const AccumAdam&) const = default;
};

template <>
struct RuleInfo<AccumAdam> : AccumAdamInfo<false> {
  static constexpr std::string_view kName = "AccumAdam", kKey = "accum-adam";
};

}  // namespace starling
#endif
