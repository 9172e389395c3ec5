#include "starling/optim/outer.h"

#include <c10/core/GradMode.h>

namespace starling {

void Outer::attach(std::vector<Block>& blocks) {
  theta_.attach(blocks);
  m_.attach(blocks);
}

void Outer::restart(std::vector<Block>& blocks) {
  for (Block& block : blocks) theta_.copy(block);
  m_.zero();
}

void Outer::step(std::vector<Block>& blocks) {
  const c10::AutoGradMode no_gradient(false);
  for (Block& block : blocks) {
    const at::Tensor theta = theta_.of(block).clone(), &m = m_.of(block);
    const at::Tensor& delta = theta_.less_parameters(block);
    m.mul_(options_.outer_momentum).add_(delta);
    theta.sub_(options_.outer == "nesterov" ? delta.add_(m, options_.outer_momentum) : m, options_.outer_lr);
    theta_.of(block).copy_(theta);
    theta_.set_parameters(block);
  }
}

void Outer::state(StateVisitor& visitor) {
  theta_.state(visitor, "outer.start");
  m_.state(visitor, "outer.momentum");
}

}  // namespace starling
