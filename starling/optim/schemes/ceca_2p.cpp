#include "starling/optim/schemes/ceca_2p.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

namespace starling {
namespace {

// d as a block that is mixed.
Block block_of(const Block& block) {
  Block d{.length = block.length};
  d.segments.push_back({.parameter = block.apart, .length = block.length});
  return d;
}

SentBlock as_sent(const float* values, std::int64_t n) {
  return {{nullptr, std::as_bytes(std::span(values, static_cast<std::size_t>(n)))}, Wire::fp32};
}

}  // namespace

Ceca2p::Ceca2p(std::vector<Block>& blocks, Exchange& exchange, int workers, RuleOf rule, Clipping& clipping)
    : blocks_(blocks),
      exchange_(exchange),
      rounds_(ceca_2p_rounds(workers)),
      rule_(std::move(rule)),
      clipping_(clipping) {
  for (Block& block : blocks_) {
    if (!block.apart.defined()) block.apart = at::zeros({block.length}, at::kFloat);
    zeros_.resize(std::max(zeros_.size(), static_cast<std::size_t>(block.length)));
  }
}

void Ceca2p::begin() {
  for (Block& block : blocks_) send_again(exchange_, block);
}

void Ceca2p::step() {
  const auto scale = clipping_.scale([&] { return sum_of_squares(blocks_); });
  const std::uint64_t now = exchange_.round();
  for (Block& block : blocks_) combine_then_adapt(block, now, scale);
}

void Ceca2p::combine_then_adapt(Block& block, std::uint64_t now, std::optional<float> scale) {
  const auto finished = finish(exchange_, block);
  const Outgoing wire = exchange_.wire(block.index);

  std::vector<Arrival> of_s(finished.begin(), finished.end()), of_d = of_s;
  for (std::size_t k = 0; k < of_s.size(); ++k) {
    const CecaShares shares = late_shares(rounds_, of_s[k].round, now);  // of this round: 1/2, w - 1/2
    of_s[k].weight = static_cast<float>(shares.s);
    of_d[k].weight = static_cast<float>(shares.d);
  }
  block.apart.mul_(1 - rounds_[(now - 1) % rounds_.size()].w());
  Block d = block_of(block);
  mix(d, of_d, {});

  const CecaShares turned = shares_of_d(rounds_, now, exchange_.round());
  if (turned.s != 0) {
    of_s.push_back({.weight = static_cast<float>(turned.s),
                    .theirs = as_sent(block.apart.const_data_ptr<float>(), block.length),
                    .mine = as_sent(zeros_.data(), block.length)});
  }
  const bool finite = update(block, rule_(block.group), of_s, wire, scale);
  if (turned.d != 1) block.apart.mul_(turned.d);
  start(exchange_, block, finite);
}

}  // namespace starling
