// Adam (Kingma & Ba 2015, arXiv 1412.6980), and the step that it shares with AdamW (adamw.h):
//
//   d = g + l2 x                              (Adam: l2 = weight decay; AdamW: l2 = 0)
//   m <- beta1 m + (1 - beta1) d
//   v <- beta2 v + (1 - beta2) d^2
//   u = [m / (1 - beta1^t)] / [sqrt(v / (1 - beta2^t)) + eps]
//   x <- keep Wx - lr u                       (Adam: keep = 1; AdamW: keep = 1 - lr * weight decay)
//
// x own parameter before mixing   Wx the mixed parameter   g gradient at x   m, v moments (state) t
// steps of this parameter, this one included             lr learning rate
//
// Adam's weight decay is a part of the gradient. So it is taken at x, as g is.
#pragma once

#include <cmath>
#include <cstdint>

#include "starling/kernels/rules/option.h"

namespace starling::kernels {

// A step along the moments, without the bias of both. Adam and Accumulated Adam share it.
struct AdamDirection {
  float lr_hat;  // lr / (1 - beta1^t)
  float root;    // 1 / sqrt(1 - beta2^t)
  float eps;

  static AdamDirection at(double lr, double beta1, double beta2, double eps, std::int64_t t) {
    const double bias1 = 1 - std::pow(beta1, static_cast<double>(t));
    const double bias2 = 1 - std::pow(beta2, static_cast<double>(t));
    return {.lr_hat = static_cast<float>(lr / bias1),
            .root = static_cast<float>(1 / std::sqrt(bias2)),
            .eps = static_cast<float>(eps)};
  }

  // lr u
  float operator()(float m, float v) const { return lr_hat * (m / (std::sqrt(v) * root + eps)); }
};

struct AdamStep {
  static constexpr int kStates = 2;
  float beta1, gain1, beta2, gain2;  // gain = 1 - beta
  float l2, keep;
  AdamDirection lr_u;

  // `decoupled`: with AdamW's weight decay.
  template <class Options>
  static AdamStep at(const Options& o, bool decoupled, std::int64_t t) {
    return {.beta1 = static_cast<float>(o.betas[0]),
            .gain1 = static_cast<float>(1 - o.betas[0]),
            .beta2 = static_cast<float>(o.betas[1]),
            .gain2 = static_cast<float>(1 - o.betas[1]),
            .l2 = decoupled ? 0.0f : static_cast<float>(o.weight_decay),
            .keep = decoupled ? static_cast<float>(1 - o.lr * o.weight_decay) : 1.0f,
            .lr_u = AdamDirection::at(o.lr, o.betas[0], o.betas[1], o.eps, t)};
  }

  float operator()(float x, float Wx, float g, float& m, float& v) const {
    const float d = g + l2 * x;
    m = beta1 * m + gain1 * d;
    v = beta2 * v + gain2 * (d * d);
    return keep * Wx - lr_u(m, v);
  }
};

}  // namespace starling::kernels

#define STARLING_STEPS_adam(f) f(starling_adam, AdamStep)

#ifndef __CUDACC_RTC__
#define STARLING_RULE_adam Adam

namespace starling {

// The common parts of Adam and AdamW. kAdamW: with AdamW's weight decay.
template <bool kAdamW>
struct AdamInfo {
  static constexpr std::array kStates{RuleStateName{"m", "exp_avg"}, RuleStateName{"v", "exp_avg_sq"}};
  static constexpr bool kDecoupled = kAdamW;

  template <class O, class F>
  static void each_option(O& o, const F& f) {
    f(RuleOption{"betas", from_below(0, 1), "decay rates of the first and second moment"}, o.betas);
    f(RuleOption{"eps", above(0), "added to the root of the second moment"}, o.eps);
    f(RuleOption{"weight_decay", at_least(0),
                 kAdamW ? "decoupled: subtracts lr * weight_decay * x from x"
                        : "adds weight_decay * x to the gradient"},
      o.weight_decay);
  }
  template <class Step, class O>
  static Step step(const O& o, std::int64_t t) {
    return kernels::AdamStep::at(o, kAdamW, t);
  }
};

struct Adam {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool operator==(const Adam&) const = default;
};

template <>
struct RuleInfo<Adam> : AdamInfo<false> {
  static constexpr std::string_view kName = "Adam", kKey = "adam";
};

}  // namespace starling
#endif
