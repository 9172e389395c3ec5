#include "starling/optim/outer.h"

#include <c10/core/GradMode.h>

#include "starling/optim/options.h"
#include "starling/optim/schemes/count.h"

namespace starling {

Outer::Outer(const Options& options, bool nesterov)
    : nesterov_(nesterov),
      lr_(outer_lr_of(options)),
      momentum_(outer_momentum_of(options)),
      period_(period_of(options)),
      warmup_(static_cast<std::uint64_t>(options.outer_warmup)),
      counts_(warmup_ > 0 || !options.outer_lr_at.empty() || !options.outer_momentum_at.empty()) {}

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
  steps_ += period_;
}

void Outer::step(const Block& block, const at::Tensor& merged, const Mask& mask) {
  const c10::AutoGradMode no_gradient(false);
  const double momentum = momentum_.at(steps_ + period_), lr = lr_.at(steps_ + period_);
  const auto thetas = chosen(theta_.of(block), mask), ms = chosen(m_.of(block), mask);
  const auto points = chosen(merged, mask);
  for (std::size_t k = 0; k < points.size(); ++k) {
    const at::Tensor delta = thetas[k] - points[k];
    ms[k].mul_(momentum).add_(delta);
    if (warms_up()) {
      thetas[k].copy_(points[k]);
      continue;
    }
    thetas[k].sub_(nesterov_ ? delta.add_(ms[k], momentum) : ms[k], lr);
    points[k].copy_(thetas[k]);
  }
}

void Outer::state(StateVisitor& visitor) {
  theta_.state(visitor, "outer.start");
  m_.state(visitor, "outer.momentum");
  if (!counts_) return;
  visit_count(visitor, "outer_steps", steps_);
}

}  // namespace starling
