// Stochastic gradient descent, with momentum (Polyak 1964) or Nesterov's (in the form of Sutskever et al.
// 2013):
//
//   d = g + wd x
//   m <- mu m + d
//   u = m            or, with Nesterov's momentum,  u = d + mu m
//   x <- Wx - lr u
//
// x own parameter before mixing   Wx the mixed parameter   g gradient at x
// m momentum (state)              mu its factor            wd weight decay   lr learning rate
//
// Weight decay is the gradient of wd/2 |x|^2, a part of the local loss, so it is taken where g was: at x, not
// at Wx.
#pragma once

#include <cstdint>

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
