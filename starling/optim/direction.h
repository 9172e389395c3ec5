// The direction in which a rule moves a whole matrix. It needs all elements of the matrix at once.
// So torch computes it before the block's pass (pass.h), which takes it in the place of the
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "starling/optim/rules.h"

namespace starling {

struct MatrixDirection {
  at::Tensor along;  // with the parameter's type and strides
  // Moves the momentum to the one that `along` was computed from. Takes no memory, so that it
  // cannot fail for want of it: call it once the step is sure to be made.
  void move_momentum() const;

  at::Tensor momentum, gradient;  // floats
  double share;                   // of the gradient in the momentum
};

// The direction of Muon (kernels/rules/muon.h). `gradient` has the parameter's type and strides; it
// is multiplied by `scale`. `m` is the momentum of before: floats in the parameter's memory order.
// As in torch.optim.Muon, the products are in bf16. Their bits may depend on torch's number of
// threads.
MatrixDirection direction(const Muon& rule, const at::Tensor& gradient, float scale, const at::Tensor& m);

// The same for any rule that takes matrices whole (takes_whole() in rule_step.h).
MatrixDirection direction(const Rule& rule, const at::Tensor& gradient, float scale, const at::Tensor& m);

}  // namespace starling
