#include "starling/optim/schemes/atc.h"

namespace starling {

void Atc::step() {
  const auto scale = clipping_.scale([&] { return sum_of_squares(blocks_); });
  for (Block& block : blocks_) {
    const bool finite = update(block, rule_(block.group), {}, exchange_.wire(block.index), scale);
    start(exchange_, block, finite);
  }
  for (Block& block : blocks_) mix(block, finish(exchange_, block), {});
}

}  // namespace starling
