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

void Outer::step(std::vector<Block>& blocks, const Exchange* exchange) {
  for (Block& block : blocks) {
    const at::Tensor x = at::empty_like(theta_.of(block));
    read_parameters(block, x);
    step(block, x, exchange == nullptr ? Mask{} : exchange->mask(block.index));
    set_parameters(block, x);
  }
}

void Outer::step(const Block& block, const at::Tensor& merged, const Mask& mask) {
  const c10::AutoGradMode no_gradient(false);
  const double momentum = options_.outer_momentum;
  const auto thetas = chosen(theta_.of(block), mask), ms = chosen(m_.of(block), mask);
  const auto points = chosen(merged, mask);
  for (std::size_t k = 0; k < points.size(); ++k) {
    const at::Tensor delta = thetas[k] - points[k];
    ms[k].mul_(momentum).add_(delta);
    thetas[k].sub_(nesterov_ ? delta.add_(ms[k], momentum) : ms[k], options_.outer_lr);
    points[k].copy_(thetas[k]);
  }
}

void Outer::state(StateVisitor& visitor) {
  theta_.state(visitor, "outer.start");
  m_.state(visitor, "outer.momentum");
}

}  // namespace starling
