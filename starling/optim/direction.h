// The direction in which a rule moves a whole matrix. It needs all elements of the matrix at once.
// So torch computes it before the block's pass (pass.h), which takes it in the place of the
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include "starling/optim/rules.h"

namespace starling {

// The direction of Muon (kernels/rules/muon.h), with the parameter's type and strides. `gradient`
// has these too; it is multiplied by `scale`. `m` is the momentum, which moves: floats in the
// parameter's memory order. As in torch.optim.Muon, the products are in bf16. Their bits may depend
// on torch's number of threads.
at::Tensor direction(const Muon& rule, const at::Tensor& gradient, float scale, const at::Tensor& m);

// The same for any rule that takes matrices whole (takes_whole() in rule_step.h).
at::Tensor direction(const Rule& rule, const at::Tensor& gradient, float scale, const at::Tensor& m);

}  // namespace starling
