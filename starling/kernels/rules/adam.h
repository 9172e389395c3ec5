// Adam (Kingma & Ba 2015, arXiv 1412.6980) and AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101):
//
//   d = g + l2 x                                        (Adam: l2 = weight decay; AdamW: l2 = 0)
//   m <- beta1 m + (1 - beta1) d
//   v <- beta2 v + (1 - beta2) d^2
//   u = [m / (1 - beta1^t)] / [sqrt(v / (1 - beta2^t)) + eps]
//   x <- keep Wx - lr u                                 (Adam: keep = 1; AdamW: keep = 1 - lr * weight decay)
//
// x own parameter before mixing   Wx the mixed parameter   g gradient at x   m, v moments (state)
// t steps of this parameter, this one included             lr learning rate
//
// Adam's weight decay is a part of the gradient, so it is taken where g was: at x. AdamW's shrinks what the
// step starts from: the mixed parameter.
#pragma once

#include <cmath>
#include <cstdint>

namespace starling::kernels {

// What Adam and Accumulated Adam share: a step along the moments, with the bias of both taken out.
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

  // `decoupled`: AdamW's weight decay.
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
