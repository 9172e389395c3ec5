// Accumulated Adam (accum_adam.h) with AdamW's weight decay (adamw.h).
#pragma once

#include "starling/kernels/rules/accum_adam.h"

#define STARLING_STEPS_accum_adamw(f)  // Accumulated Adam's

#ifndef __CUDACC_RTC__
#define STARLING_RULE_accum_adamw AccumAdamW

namespace starling {

struct AccumAdamW {
  double lr = 1e-3;
  std::array<double, 2> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  int window = 8;
  bool operator==(const AccumAdamW&) const = default;
};

template <>
struct RuleInfo<AccumAdamW> : AccumAdamInfo<true> {
  static constexpr std::string_view kName = "AccumAdamW", kKey = "accum-adamw";
};

}  // namespace starling
#endif
