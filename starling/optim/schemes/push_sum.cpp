#include "starling/optim/schemes/push_sum.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "starling/exchange/weight.h"
#include "starling/optim/rule_step.h"

namespace starling {
namespace {

void send_weight(const Block& block, const Outgoing& wire) {
  if (wire.values == nullptr) return;
  write_weight(
      block.weight, wire.wire,
      static_cast<std::byte*>(wire.values) + bytes_of(wire.wire, static_cast<std::size_t>(block.length)));
}

// The rule whose step on z is this rule's step on x.
Rule divided(Rule rule, double w) {
  std::visit([w](auto& o) { o.lr /= w; }, rule);
  return decay_times(std::move(rule), w);
}

}  // namespace

void PushSum::begin() {
  if (staleness_ == 0) return;
  steps_ = 0;
  for (Block& block : blocks_) {
    const Outgoing wire = exchange_.wire(block.index);
    const bool finite = write_again(block, wire);
    send_weight(block, wire);
    start(exchange_, block, finite);
  }
}

void PushSum::step() {
  const auto scale = clipping_.scale([&] { return sum_of_squares(blocks_); });
  if (staleness_ == 0) {
    for (Block& block : blocks_) adapt_and_push(block, {}, scale);
    for (Block& block : blocks_) mix(block, absorb(block), {});
  } else if (++steps_ < staleness_) {
    for (Block& block : blocks_) adapt(block, {}, {}, scale);
  } else {
    steps_ = 0;
    for (Block& block : blocks_) adapt_and_push(block, absorb(block), scale);
  }
}

bool PushSum::adapt(Block& block, std::span<const Arrival> mixes, const Outgoing& wire,
                    std::optional<float> scale) {
  return update(block, divided(rule_(block.group), block.weight), mixes, wire, scale);
}

void PushSum::adapt_and_push(Block& block, std::span<const Arrival> mixes, std::optional<float> scale) {
  const Outgoing wire = exchange_.wire(block.index);
  const bool finite = adapt(block, mixes, wire, scale);
  send_weight(block, wire);
  start(exchange_, block, finite);
}

// Brings w up to date, and says how z is to be mixed.
std::vector<Arrival> PushSum::absorb(Block& block) {
  std::vector<std::pair<double, SentBlock>> moved;  // mass, and where it came from or goes
  const auto move = [&](double share, const SentBlock& q) {
    if (share == 0) return;
    const double mass = share * weight_of(q, static_cast<std::size_t>(block.length));
    block.weight += mass;
    const auto same =
        std::ranges::find(moved, q.bytes().data(), [](const auto& m) { return m.second.bytes().data(); });
    same == moved.end() ? void(moved.emplace_back(mass, q)) : void(same->first += mass);
  };
  for (const Arrival& swap : finish(exchange_, block)) {
    move(swap.weight, swap.theirs);
    move(-swap.given, swap.mine);
  }
  std::vector<Arrival> mixes;
  for (auto& [mass, q] : moved) {
    if (mass != 0)
      mixes.push_back({.weight = static_cast<float>(mass / block.weight), .theirs = std::move(q)});
  }
  return mixes;
}

}  // namespace starling
