#include "starling/optim/schemes/diffusion.h"

#include <vector>

namespace starling {

void Diffusion::step() {
  adapt_and_send();
  round_ = exchange().round();
  for (Block& block : blocks_) {
    std::vector<Arrival> moves = uploaded(block, finish(exchange(), block));
    for (Arrival& move : moves) move.weight *= share_;
    e_.mix(block, moves);
    for (Arrival& move : moves) move.weight *= static_cast<float>(round_ - move.round + 1);
    mix(block, moves, {});
  }
}

void Diffusion::adapt_and_send() {
  std::vector<Outgoing> outgoing;
  for (const Block& block : blocks_) outgoing.push_back(exchange().outgoing(block.index));
  const auto rounds = static_cast<float>(exchange().round() - round_);
  const auto scale = local_.is_fused() ? local_.scale() : std::nullopt;
  if (!local_.is_fused()) {
    for (Block& block : blocks_) mix(block, {{e_.plus(block, rounds)}}, {});
    local_.all();
  }
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Block& block = blocks_[b];
    const Then send = then_start(exchange(), block);
    if (local_.is_fused()) {
      update(block, local_.rule(block), {{e_.plus(block, rounds)}}, outgoing[b], scale, send);
    } else {
      update(block, Rule{}, {}, outgoing[b], std::nullopt, send);
    }
  }
}

}  // namespace starling
