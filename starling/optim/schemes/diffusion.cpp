#include "starling/optim/schemes/diffusion.h"

#include <cstdint>
#include <vector>

namespace starling {

void Diffusion::step() {
  adapt_and_send();
  const std::uint64_t round = exchange().round();
  if (round_ > 0) missed_ += (round - round_ - 1) * blocks_.size();
  round_ = round;
  for (Block& block : blocks_) {
    std::vector<Arrival> moves = uploaded(block, finish(exchange(), block));
    for (Arrival& move : moves) move.weight *= share_;
    e_.mix(block, moves);
    for (Arrival& move : moves) move.weight *= static_cast<float>(round - move.round + 1);
    mix(block, moves, {});
  }
}

void Diffusion::adapt_and_send() {
  if (!local_.is_fused()) {
    for (Block& block : blocks_) mix(block, {{e_.plus(block)}}, {});
    local_.all();
    for (Block& block : blocks_) mix_and_send(exchange(), block, {});
    return;
  }
  const auto scale = local_.scale();
  for (Block& block : blocks_)
    update_and_send(exchange(), block, local_.rule(block), {{e_.plus(block)}}, scale);
}

}  // namespace starling
