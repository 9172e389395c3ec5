#include "starling/optim/schemes/ahead.h"

namespace starling {

void AheadScheme::attach(const Connection& connection) {
  Scheme::attach(connection);
  if (keeps_sent_) sent_.attach(blocks_);
}

void AheadScheme::begin() {
  for (Block& block : blocks_) {
    if (keeps_sent_) {
      const Outgoing outgoing = exchange().outgoing(block.index);
      start(exchange(), block, sent_.write_again(block, outgoing));
    } else {
      send_again(exchange(), block);
    }
  }
}

void AheadScheme::restart() {
  if (!keeps_sent_) return;
  for (Block& block : blocks_) sent_.copy(block);
}

void AheadScheme::state(StateVisitor& visitor) {
  if (keeps_sent_) sent_.state(visitor, "sent");
}

void AheadScheme::update_and_send(Block& block, std::span<const Arrival> arrived,
                                  std::optional<float> scale) {
  starling::update_and_send(exchange(), block, local_.rule(block), arrived, scale);
  if (keeps_sent_) sent_.copy(block);
}

void AheadScheme::mix_and_send(Block& block) {
  starling::mix_and_send(exchange(), block, {});
  if (keeps_sent_) sent_.copy(block);
}

}  // namespace starling
