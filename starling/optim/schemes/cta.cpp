#include "starling/optim/schemes/cta.h"

namespace starling {

void Cta::begin() {
  for (Block& block : blocks_) {
    const bool finite = mix(block, {}, exchange_.wire(block.index));
    exchange_.start(block.index, finite);
  }
}

void Cta::step() {
  for (Block& block : blocks_) {
    const auto arrived = finish(exchange_, block);
    const bool finite = update(block, rule_(block.group), arrived, exchange_.wire(block.index));
    exchange_.start(block.index, finite);
  }
}

}  // namespace starling
