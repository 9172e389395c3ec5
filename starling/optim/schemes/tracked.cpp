#include "starling/optim/schemes/tracked.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>

namespace starling {
namespace {

at::Tensor part_of(const at::Tensor& block, const Segment& s) { return block.narrow(0, s.offset, s.length); }

}  // namespace

bool track(const Segment& s, const at::Tensor& m, const at::Tensor& y, double beta) {
  at::Tensor keep;
  const bool used = s.gradient(keep) != nullptr;
  const at::Tensor g =
      used ? stretch(keep, s.begin, s.length).to(at::kFloat) : at::zeros({s.length}, m.options());
  if (!g.isfinite().all().item<bool>()) return false;
  const at::Tensor old = part_of(m, s);
  const at::Tensor fresh = beta == 0 ? g : g.add(old, beta);
  part_of(y, s).add_(fresh.sub(old));
  old.copy_(fresh);
  return true;
}

void write_gradient(const Segment& s, const at::Tensor& y) {
  at::Tensor keep;
  const bool there = s.gradient(keep) != nullptr || part_of(y, s).ne(0).any().item<bool>();
  if (!there || !s.parameter.requires_grad()) return;
  s.mutable_gradient();
  stretch(s.parameter.grad(), s.begin, s.length).copy_(part_of(y, s));
}

}  // namespace starling
