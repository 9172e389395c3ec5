// The rules in double on one number, as in the papers.
#pragma once

#include <cmath>

#include "starling/optim/rules.h"

namespace starling {

// One worker's AccumAdamW; window 1 is AdamW.
struct Plain {
  int t = 0;  // steps with a gradient
  double m = 0, v = 0, b = 0;

  // The direction u(g): x <- (1 - lr weight_decay) x - lr u(g).
  double direction(double g, const AccumAdamW& o) {
    ++t;
    const double k = std::ceil(static_cast<double>(t) / o.window);
    const double mt = o.betas[0] * m + (1 - o.betas[0]) * g, vt = o.betas[1] * v + (1 - o.betas[1]) * g * g;
    b += g / o.window;
    if (t % o.window == 0) {
      m = o.betas[0] * m + (1 - o.betas[0]) * b;
      v = o.betas[1] * v + (1 - o.betas[1]) * b * b;
      b = 0;
    }
    return (mt / (1 - std::pow(o.betas[0], k))) / (std::sqrt(vt / (1 - std::pow(o.betas[1], k))) + o.eps);
  }
};

}  // namespace starling
