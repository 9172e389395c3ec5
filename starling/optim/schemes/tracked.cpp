#include "starling/optim/schemes/tracked.h"

#include <utility>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

namespace starling {
namespace {

at::Tensor part_of(const at::Tensor& block, const Segment& s) { return block.narrow(0, s.offset, s.length); }

// Returns false, and changes nothing, if the gradient is not all finite.
bool track_segment(const Segment& s, const at::Tensor& m, const at::Tensor& y, double beta, double weight) {
  at::Tensor keep;
  const bool used = s.gradient(keep) != nullptr;
  const at::Tensor g =
      used ? stretch(keep, s.begin, s.length).to(at::kFloat) : at::zeros({s.length}, m.options());
  if (!g.isfinite().all().item<bool>()) return false;
  const at::Tensor old = part_of(m, s);
  const at::Tensor fresh = beta == 0 ? g : g.add(old, beta);
  part_of(y, s).add_(fresh.sub(old), 1 / weight);
  old.copy_(fresh);
  return true;
}

}  // namespace

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
    for (const Segment& s : block.segments) finite_ &= track_segment(s, m, y, beta, weight);
  });
  if (before && !finite_)
    log(Level::warning, "the gradient is not finite: what is tracked keeps the last one that was");
  // After all gradients were read, since writing may replace a .grad of another memory order.
  each_block([&](const Block& block, const at::Tensor&, const at::Tensor& y) {
    for (const Segment& s : block.segments) write_gradient(s, y);
  });
}

}  // namespace starling
