#include "starling/optim/direction.h"

#include <stdexcept>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/lerp.h>
#include <c10/core/GradMode.h>

namespace starling {
namespace {

// Newton-Schulz with Jordan's quintic p(s) = a s + b s^3 + c s^5. From a norm of 1 at most, it
// takes the singular values of n to about 1 (0.7 to 1.2), and so n = U S V^T to about U V^T.
at::Tensor orthogonal(const at::Tensor& n, int steps, double eps) {
  constexpr double a = 3.4445, b = -4.7750, c = 2.0315;
  const bool tall = n.size(0) > n.size(1);  // the smaller product is of the rows
  at::Tensor x = n.to(at::kBFloat16);
  if (tall) x = x.t();
  x = x / x.norm().clamp_min(eps);
  for (int i = 0; i < steps; ++i) {
    const at::Tensor gram = x.mm(x.t());
    x = at::addmm(x, at::addmm(gram, gram, gram, b, c), x, a, 1);
  }
  return tall ? x.t() : x;
}

}  // namespace

void MatrixDirection::move_momentum() const {
  const c10::AutoGradMode no_gradient(false);
  momentum.lerp_(gradient, share);
}

MatrixDirection direction(const Muon& rule, const at::Tensor& gradient, float scale, const at::Tensor& m) {
  const c10::AutoGradMode no_gradient(false);
  const at::Tensor momentum = m.as_strided(gradient.sizes(), gradient.strides());
  at::Tensor g = gradient.to(at::kFloat);
  if (scale != 1) g = g * scale;
  const double share = 1 - rule.momentum;
  at::Tensor n = at::lerp(momentum, g, share);
  if (rule.nesterov) n = at::lerp(g, n, rule.momentum);
  const at::Tensor matrix = n.reshape({n.size(0), n.numel() / n.size(0)});
  const at::Tensor along = at::empty_like(gradient);
  along.copy_(orthogonal(matrix, rule.ns_steps, rule.eps).reshape(gradient.sizes()));
  return {along, momentum, g, share};
}

MatrixDirection direction(const Rule& rule, const at::Tensor& gradient, float scale, const at::Tensor& m) {
  return std::visit(
      [&]<class Options>(const Options& o) -> MatrixDirection {
        if constexpr (requires { RuleInfo<Options>::takes_whole(o, 0); })
          return direction(o, gradient, scale, m);
        else
          throw std::logic_error("a rule without matrices has no direction of one");
      },
      rule);
}

}  // namespace starling
