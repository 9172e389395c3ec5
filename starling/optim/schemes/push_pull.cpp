#include "starling/optim/schemes/push_pull.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <span>
#include <utility>

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "starling/kernels/update.h"
#include "starling/kernels/wire.h"

namespace starling {
namespace {

// y <- y + g(x) - g, g <- g(x), where g(x) is all finite; else false.
bool track(const Segment& s, std::vector<float>& fresh, std::span<float> g, std::span<float> y) {
  at::Tensor keep;
  const void* const gradient = s.gradient(keep);
  const auto n = static_cast<std::size_t>(s.length), first = static_cast<std::size_t>(s.offset);
  fresh.assign(n, 0);  // a parameter that was not used has none
  if (gradient != nullptr) {
    const std::span bytes(static_cast<const std::byte*>(gradient), bytes_of(s.format, n));
    if (!kernels::all_finite(bytes, s.format)) return false;
    kernels::decode(gradient, s.format, n, fresh.data());
  }
  for (std::size_t k = 0; k < n; ++k) {
    y[first + k] += fresh[k] - g[first + k];
    g[first + k] = fresh[k];
  }
  return true;
}

// Where nobody has a gradient there is none.
void write_gradient(const Segment& s, std::span<const float> y) {
  at::Tensor keep;
  const auto mine = y.subspan(static_cast<std::size_t>(s.offset), static_cast<std::size_t>(s.length));
  const bool there = s.gradient(keep) != nullptr || std::ranges::any_of(mine, [](float v) { return v != 0; });
  if (there && s.parameter.requires_grad())
    kernels::encode(mine.data(), mine.size(), s.format, s.mutable_gradient());
}

}  // namespace

PushPull::PushPull(std::vector<Block>& blocks, std::unique_ptr<Transport> transport, GossipOptions options,
                   Log log, std::shared_ptr<Timeline> timeline, std::function<void()> adapt)
    : Asynchronous(blocks, std::move(transport), std::move(options), log, std::move(timeline),
                   std::move(adapt)),
      log_(std::move(log)) {
  for (const Block& block : blocks) g_.emplace_back(static_cast<std::size_t>(block.length));
}

void PushPull::begin() {
  Asynchronous::begin();
  for (std::vector<float>& g : g_) std::ranges::fill(g, 0.0F);
}

void PushPull::step() {
  resume();
  track_gradients();
  adapt();
  give();
}

void PushPull::stand_by() {
  each_block([&](const Block& block, const Gossip::Held& held) {
    std::vector<float>& g = g_[static_cast<std::size_t>(block.index)];
    std::ranges::transform(held.y, g, held.y.begin(), std::minus());
    std::ranges::fill(g, 0.0F);
  });
  Asynchronous::stand_by();
}

void PushPull::track_gradients() {
  RECORD_USER_SCOPE("starling::track");
  const c10::AutoGradMode no_gradient(false);
  std::vector<float> fresh;
  const bool before = std::exchange(finite_, true);
  each_block([&](const Block& block, const Gossip::Held& held) {
    for (const Segment& s : block.segments)
      finite_ &= track(s, fresh, g_[static_cast<std::size_t>(block.index)], held.y);
  });
  if (before && !finite_)
    log_(Level::warning, "the gradient is not finite: what is tracked keeps the last one that was");
  // After all were read: one that lies in another order is made anew.
  each_block([&](const Block& block, const Gossip::Held& held) {
    for (const Segment& s : block.segments) write_gradient(s, held.y);
  });
}

}  // namespace starling
