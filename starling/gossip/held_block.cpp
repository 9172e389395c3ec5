#include "starling/gossip/held_block.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "starling/gossip/a2cid2.h"
#include "starling/kernels/update.h"
#include "starling/kernels/wire.h"

namespace starling {
namespace {

void mix(std::span<float> x, const kernels::Mix& neighbour) {
  kernels::update(kernels::Step{}, {&neighbour, 1}, x.data(), nullptr, {}, {}, x.size());
}

}  // namespace

HostBlock::HostBlock(std::vector<float> x, Beside beside)
    : x_(std::move(x)), x_tilde_(beside.x_tilde ? x_ : std::vector<float>()), y_(beside.y ? x_.size() : 0) {}

void HostBlock::mix_momentum(double eta_tau) { starling::mix_momentum(x_, x_tilde_, eta_tau); }

bool HostBlock::send(double eta_tau, const kernels::WireBlock& to, float times) {
  bool finite = true;
  in_parts(x_, x_tilde_, [&](std::size_t at, std::span<float> x, std::span<float> x_tilde) {
    starling::mix_momentum(x, x_tilde, eta_tau);
    kernels::WireBlock part = to;
    part.values = static_cast<std::byte*>(to.values) + bytes_of(to.wire, at);
    finite &= kernels::update(kernels::Step{}, {}, x.data(), nullptr, {}, part, x.size());
  });
  if (y_.empty()) return finite;
  std::vector<float> scaled;
  if (times != 1) {
    scaled = y_;
    std::ranges::for_each(scaled, [times](float& value) { value *= times; });
  }
  const std::span behind(static_cast<std::byte*>(to.values) + bytes_of(to.wire, x_.size()),
                         bytes_of(to.wire, y_.size()));
  kernels::encode(times != 1 ? scaled.data() : y_.data(), y_.size(), to.wire, behind.data());
  return kernels::all_finite(behind, to.wire) && finite;
}

kernels::Measured HostBlock::average(double eta_tau, float alpha, float alpha_tilde, const SentBlock& q_j,
                                     const SentBlock& q_i) {
  kernels::Measured measured;
  in_parts(x_, x_tilde_, [&](std::size_t at, std::span<float> x, std::span<float> x_tilde) {
    starling::mix_momentum(x, x_tilde, eta_tau);
    mix(x, {alpha, q_j.values(at), q_i.values(at), &measured});
    if (!x_tilde.empty()) mix(x_tilde, {alpha_tilde, q_j.values(at), q_i.values(at), nullptr});
  });
  return measured;
}

void HostBlock::move_towards(const SentBlock& q, float share) {
  mix(x_, {share, q.values(), x_.data(), nullptr});
}

void HostBlock::add_tracked(const SentBlock& q, float share) {
  std::vector<float> sent(y_.size());
  kernels::decode(q.values(sent.size()).values, q.wire, sent.size(), sent.data());
  std::ranges::transform(y_, sent, y_.begin(), [share](float y, float sent) { return y + share * sent; });
}

}  // namespace starling
