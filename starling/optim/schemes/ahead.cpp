#include "starling/optim/schemes/ahead.h"

namespace starling {

void AheadScheme::attach(const Connection& connection) {
  Scheme::attach(connection);
  if (has_local_steps()) sent_.attach(blocks_);
}

void AheadScheme::begin() {
  for (Block& block : blocks_) {
    if (has_local_steps()) {
      const Outgoing outgoing = exchange().outgoing(block.index);
      start(exchange(), block, sent_.write_again(block, outgoing));
    } else {
      send_again(exchange(), block);
    }
  }
}

void AheadScheme::restart() {
  if (!has_local_steps()) return;
  for (Block& block : blocks_) sent_.copy(block);
}

void AheadScheme::state(StateVisitor& visitor) {
  if (has_local_steps()) sent_.state(visitor, "sent");
}

void AheadScheme::update_and_send(Block& block, std::span<const Arrival> arrived,
                                  std::optional<float> scale) {
  starling::update_and_send(exchange(), block, local_.rule(block), arrived, scale);
  if (has_local_steps()) sent_.copy(block);
}

void AheadScheme::mix_and_send(Block& block) {
  starling::mix_and_send(exchange(), block, {});
  if (has_local_steps()) sent_.copy(block);
}

}  // namespace starling
