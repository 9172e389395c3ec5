#include "starling/optim/schemes/push_pull.h"

#include <cstddef>
#include <functional>
#include <utility>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

namespace starling {
namespace {

at::Tensor part_of(const at::Tensor& block, const Segment& s) { return block.narrow(0, s.offset, s.length); }

// y <- y + g(x) - g, g <- g(x), where g(x) is all finite; else false.
bool track(const Segment& s, const at::Tensor& g, const at::Tensor& y) {
  at::Tensor keep;
  const bool used = s.gradient(keep) != nullptr;  // a parameter that was not has none
  const at::Tensor fresh =
      used ? stretch(keep, s.begin, s.length).to(at::kFloat) : at::zeros({s.length}, g.options());
  if (!fresh.isfinite().all().item<bool>()) return false;
  part_of(y, s).add_(fresh.sub(part_of(g, s)));
  part_of(g, s).copy_(fresh);
  return true;
}

// Where nobody has a gradient there is none.
void write_gradient(const Segment& s, const at::Tensor& y) {
  at::Tensor keep;
  const bool there = s.gradient(keep) != nullptr || part_of(y, s).ne(0).any().item<bool>();
  if (!there || !s.parameter.requires_grad()) return;
  s.mutable_gradient();
  stretch(s.parameter.grad(), s.begin, s.length).copy_(part_of(y, s));
}

}  // namespace

PushPull::PushPull(std::vector<Block>& blocks, std::unique_ptr<Transport> transport, GossipOptions options,
                   Log log, std::shared_ptr<Timeline> timeline, std::function<void()> adapt)
    : Asynchronous(blocks, std::move(transport), std::move(options), log, std::move(timeline),
                   std::move(adapt)),
      log_(std::move(log)) {
  for (const Block& block : blocks)
    g_.push_back(at::zeros({block.length}, at::TensorOptions(at::kFloat).device(block.device)));
}

void PushPull::begin() {
  Asynchronous::begin();
  for (const at::Tensor& g : g_) g.zero_();
}

void PushPull::step() {
  resume();
  track_gradients();
  adapt();
  give();
}

void PushPull::stand_by() {
  each_y([&](const Block& block, const at::Tensor& y) {
    const at::Tensor& g = g_[static_cast<std::size_t>(block.index)];
    y.sub_(g);
    g.zero_();
  });
  Asynchronous::stand_by();
}

void PushPull::track_gradients() {
  RECORD_USER_SCOPE("starling::track");
  const c10::AutoGradMode no_gradient(false);
  const bool before = std::exchange(finite_, true);
  each_y([&](const Block& block, const at::Tensor& y) {
    for (const Segment& s : block.segments) finite_ &= track(s, g_[static_cast<std::size_t>(block.index)], y);
  });
  if (before && !finite_)
    log_(Level::warning, "the gradient is not finite: what is tracked keeps the last one that was");
  // After all were read: one that lies in another order is made anew.
  each_y([&](const Block& block, const at::Tensor& y) {
    for (const Segment& s : block.segments) write_gradient(s, y);
  });
}

}  // namespace starling
