// AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101): Adam's step (adam.h) with decoupled
// weight decay,
//
//   x <- (1 - lr * weight decay) Wx - lr u
//
// x own parameter before mixing   Wx the mixed parameter   u Adam's direction   lr learning rate
//
// The decay shrinks what the step starts from: the mixed parameter.
#pragma once

#include "starling/kernels/rules/adam.h"

#define STARLING_STEPS_adamw(f)  // Adam's

#ifndef __CUDACC_RTC__
#define STARLING_RULE_adamw AdamW

namespace starling {

struct AdamW {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool operator==(const AdamW&) const = default;
};

template <>
struct RuleInfo<AdamW> : AdamInfo<true> {
  static constexpr std::string_view kName = "AdamW", kKey = "adamw";
};

}  // namespace starling
#endif
