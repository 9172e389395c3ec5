#include "starling/optim/outer.h"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace starling {
namespace {

// Calls f(x, theta, m) for each segment. x is the parameter's stretch or its master. A parameter
// follows its master.
template <class Point, class F>
void each_segment(Block& block, const Point& point, const F& f) {
  const c10::AutoGradMode no_gradient(false);
  with_masters({&block, 1});
  for (const Segment& s : block.segments) {
    const at::Tensor parameter = stretch(s.parameter, s.begin, s.length);
    const at::Tensor x = s.master.defined() ? s.master : parameter;
    f(x, point.theta.narrow(0, s.offset, s.length), point.m.narrow(0, s.offset, s.length));
    if (s.master.defined()) parameter.copy_(x);
  }
}

void begin(Block& block, const auto& point) {
  each_segment(block, point, [](const auto& x, const auto& theta, const auto& m) {
    theta.copy_(x);
    m.zero_();
  });
}

}  // namespace

void Outer::attach(std::vector<Block>& blocks) {
  for (std::size_t b = points_.size(); b < blocks.size(); ++b) {
    const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(blocks[b].device);
    points_.push_back({at::zeros({blocks[b].length}, floats), at::zeros({blocks[b].length}, floats)});
    begin(blocks[b], points_[b]);
  }
}

void Outer::restart(std::vector<Block>& blocks) {
  for (std::size_t b = 0; b < blocks.size(); ++b) begin(blocks[b], points_[b]);
}

void Outer::step(std::vector<Block>& blocks) {
  const double lr = options_.outer_lr, momentum = options_.outer_momentum;
  const bool nesterov = options_.outer == "nesterov";
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    each_segment(blocks[b], points_[b], [&](const auto& x, const auto& theta, const auto& m) {
      const at::Tensor delta = theta - x;
      m.mul_(momentum).add_(delta);
      theta.sub_(nesterov ? delta.add_(m, momentum) : m, lr);
      x.copy_(theta);
    });
  }
}

void Outer::state(StateVisitor& visitor) {
  const auto visit = [&](const char* name, Fresh fresh, at::Tensor Point::* values) {
    visitor.values(name, fresh, [this, values](Block& block, const auto& f) {
      f(points_[static_cast<std::size_t>(block.index)].*values);
    });
  };
  visit("outer.start", Fresh::parameter, &Point::theta);
  visit("outer.momentum", Fresh::zero, &Point::m);
}

}  // namespace starling
