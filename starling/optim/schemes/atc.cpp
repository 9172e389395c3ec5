#include "starling/optim/schemes/atc.h"

namespace starling {

void Atc::step() {
  for (Block& block : blocks_) {
    const bool finite = update(block, rule_(block.group), {}, exchange_.wire(block.index));
    exchange_.start(block.index, finite);
  }
  for (Block& block : blocks_) mix(block, finish(exchange_, block), {});
}

}  // namespace starling
