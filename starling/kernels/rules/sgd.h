// Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov's momentum (in the form of
// Sutskever et al. 2013):
//
//   d = g + wd x
//   m <- mu m + d
//   u = m            or, with Nesterov's momentum,  u = d + mu m
//   x <- Wx - lr u
//
// x own parameter before mixing   Wx the mixed parameter   g gradient at x
// m momentum (state)              mu its factor            wd weight decay   lr learning rate
//
// Weight decay is the gradient of wd/2 |x|^2, a part of the local loss. So it is taken at x, as
// g is, not at Wx.
#pragma once

#include <cstdint>

#include "starling/kernels/rules/option.h"

namespace starling::kernels {

// Without momentum: no state.
struct SgdStep {
  static constexpr int kStates = 0;
  float lr, wd;

  template <class Options>
  static SgdStep at(const Options& o, std::int64_t /*t*/) {
    return {.lr = static_cast<float>(o.lr), .wd = static_cast<float>(o.weight_decay)};
  }

  float operator()(float x, float Wx, float g) const {
    const float d = g + wd * x;
    return Wx - lr * d;
  }
};

struct MomentumStep {
  static constexpr int kStates = 1;
  float lr, mu, wd;
  bool nesterov;

  template <class Options>
  static MomentumStep at(const Options& o, std::int64_t /*t*/) {
    return {.lr = static_cast<float>(o.lr),
            .mu = static_cast<float>(o.momentum),
            .wd = static_cast<float>(o.weight_decay),
            .nesterov = o.nesterov};
  }

  float operator()(float x, float Wx, float g, float& m) const {
    const float d = g + wd * x;
    m = mu * m + d;
    const float u = nesterov ? d + mu * m : m;
    return Wx - lr * u;
  }
};

}  // namespace starling::kernels

#define STARLING_STEPS_sgd(f) f(starling_sgd, SgdStep) f(starling_momentum, MomentumStep)

#ifndef __CUDACC_RTC__
#define STARLING_RULE_sgd SGD

namespace starling {

struct SGD {
  double lr = 0.1;
  double momentum = 0;  // 0: none is kept
  bool nesterov = false;
  double weight_decay = 0;
  bool operator==(const SGD&) const = default;
};

template <>
struct RuleInfo<SGD> {
  static constexpr std::string_view kName = "SGD", kKey = "sgd";
  static constexpr std::array kStates{RuleStateName{"m", "momentum_buffer"}};
  static constexpr bool kDecoupled = false;

  template <class O, class F>
  static void each_option(O& o, const F& f) {
    f(RuleOption{"momentum", from_below(0, 1), "share of the momentum that a step keeps; 0: no momentum"},
      o.momentum);
    f(RuleOption{"nesterov", {}, "Nesterov's form of momentum", "momentum"}, o.nesterov);
    f(RuleOption{"weight_decay", at_least(0), "adds weight_decay * x to the gradient"}, o.weight_decay);
  }
  template <class Step>
  static Step step(const SGD& o, std::int64_t t) {
    if (o.momentum == 0) return kernels::SgdStep::at(o, t);
    return kernels::MomentumStep::at(o, t);
  }
};

}  // namespace starling
#endif
