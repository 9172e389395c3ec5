#include "starling/optim/schemes/cta.h"

namespace starling {

void Cta::begin() {
  for (Block& block : blocks_) send_again(exchange_, block);
}

void Cta::step() {
  const auto scale = clipping_.scale([&] { return sum_of_squares(blocks_); });
  for (Block& block : blocks_) {
    const auto arrived = finish(exchange_, block);
    const bool finite = update(block, rule_(block.group), arrived, exchange_.wire(block.index), scale);
    start(exchange_, block, finite);
  }
}

}  // namespace starling
