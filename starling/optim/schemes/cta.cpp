#include "starling/optim/schemes/cta.h"

namespace starling {

void combine_then_adapt(Block& block, Exchange& exchange, const RuleOf& rule, std::optional<float> scale) {
  const auto arrived = finish(exchange, block);
  update_and_send(exchange, block, rule(block.group), arrived, scale);
}

void Cta::begin() {
  for (Block& block : blocks_) send_again(exchange_, block);
}

void Cta::step() {
  const auto scale = clipping_.scale([&] { return sum_of_squares(blocks_); });
  for (Block& block : blocks_) combine_then_adapt(block, exchange_, rule_, scale);
}

}  // namespace starling
