#include "starling/optim/schemes/atc.h"

namespace starling {

void Atc::step() {
  const auto scale = clipping_.scale([&] { return sum_of_squares(blocks_); });
  for (Block& block : blocks_) update_and_send(exchange_, block, rule_(block.group), {}, scale);
  for (Block& block : blocks_) mix(block, finish(exchange_, block), {});
}

}  // namespace starling
