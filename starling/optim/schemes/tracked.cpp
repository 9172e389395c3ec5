#include "starling/optim/schemes/tracked.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

namespace starling {
namespace {

at::Tensor part_of(const at::Tensor& block, const Segment& s) { return block.narrow(0, s.offset, s.length); }

// The segment's gradient in fp32; 0 without one.
at::Tensor gradient_of(const Segment& s, const at::Tensor& m) {
  at::Tensor keep;
  if (s.gradient(keep) == nullptr) return at::zeros({s.length}, m.options());
  return stretch(keep, s.begin, s.length).to(at::kFloat);
}

// Returns whether all gradients are finite. A segment whose gradient is not keeps m and y.
bool track_block(const Block& block, const at::Tensor& m, const at::Tensor& y, double beta, double weight) {
  std::vector<at::Tensor> gradients, finite;
  for (const Segment& s : block.segments) {
    gradients.push_back(gradient_of(s, m));
    finite.push_back(gradients.back().isfinite().all());
  }
  const at::Tensor known = at::stack(finite).cpu();  // waits for a GPU once
  const auto* const is_finite = known.const_data_ptr<bool>();
  for (std::size_t k = 0; k < gradients.size(); ++k) {
    if (!is_finite[k]) continue;
    const at::Tensor &g = gradients[k], old = part_of(m, block.segments[k]);
    const at::Tensor fresh = beta == 0 ? g : g.add(old, beta);
    part_of(y, block.segments[k]).add_(fresh.sub(old), 1 / weight);
    old.copy_(fresh);
  }
  return std::all_of(is_finite, is_finite + gradients.size(), [](bool one) { return one; });
}

}  // namespace

at::Tensor gradient_of(const Block& block) {
  const at::Tensor g = at::zeros({block.length}, at::TensorOptions(at::kFloat).device(block.device));
  for (const Segment& s : block.segments) {
    at::Tensor keep;
    if (s.gradient(keep) != nullptr) part_of(g, s).copy_(stretch(keep, s.begin, s.length));
  }
  return g;
}

void write_gradient(const Segment& s, const at::Tensor& y) {
  at::Tensor keep;
  const bool there = s.gradient(keep) != nullptr || part_of(y, s).ne(0).any().item<bool>();
  if (!there || !s.parameter.requires_grad()) return;
  s.mutable_gradient();
  stretch(s.parameter.grad(), s.begin, s.length).copy_(part_of(y, s));
}

void Tracker::track(const EachBlock& each_block, double beta, const Log& log,
                    std::span<const double> weights) {
  RECORD_USER_SCOPE("starling::track");
  const c10::AutoGradMode no_gradient(false);
  const bool before = std::exchange(finite_, true);
  each_block([&](const Block& block, const at::Tensor& m, const at::Tensor& y) {
    const double weight = weights.empty() ? 1 : weights[static_cast<std::size_t>(block.index)];
    finite_ &= track_block(block, m, y, beta, weight);
  });
  if (before && !finite_)
    log(Level::warning, "the gradient is not finite: what is tracked keeps the last one that was");
  // After all gradients were read, since writing may replace a .grad of another memory order.
  each_block([&](const Block& block, const at::Tensor&, const at::Tensor& y) {
    for (const Segment& s : block.segments) write_gradient(s, y);
  });
}

}  // namespace starling
