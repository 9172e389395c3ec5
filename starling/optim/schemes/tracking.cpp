#include "starling/optim/schemes/tracking.h"

#include <vector>

namespace starling {

void Tracking::attach(const Connection& connection) {
  Scheme::attach(connection);
  y_.attach(blocks_);
  m_.attach(blocks_);
}

void Tracking::restart() {
  y_.zero();
  m_.zero();
}

void Tracking::state(StateVisitor& visitor) {
  y_.state(visitor, "tracked");
  m_.state(visitor, "own");
}

void Tracking::begin() {
  for (Block& block : blocks_) {
    const Outgoing outgoing = exchange().outgoing(block.index);
    send(block, outgoing, write_again(block, outgoing));
  }
}

void Tracking::step() {
  mix_tracked();
  tracker_.track(
      [this](const auto& f) {
        for (const Block& block : blocks_) f(block, m_.of(block), y_.of(block));
      },
      beta_, world_.log);
  if (local_.is_fused()) {
    const auto scale = local_.scale();
    for (Block& block : blocks_) {
      const Outgoing outgoing = exchange().outgoing(block.index);
      send(block, outgoing, update(block, local_.rule(block), arrived(block), outgoing, scale));
    }
    return;
  }
  for (Block& block : blocks_) mix(block, arrived(block), {});
  local_.all();
  for (Block& block : blocks_) {
    const Outgoing outgoing = exchange().outgoing(block.index);
    send(block, outgoing, mix(block, {}, outgoing));
  }
}

void Tracking::mix_tracked() {
  arrived_.clear();
  for (const Block& block : blocks_) {
    arrived_.push_back(finish(exchange(), block));
    std::vector<Arrival> of_y(arrived_.back().begin(), arrived_.back().end());
    for (Arrival& a : of_y) {
      if (a.weight == 0) continue;
      a.theirs = second_vector(a.theirs, block);
      a.mine = second_vector(a.mine, block);
    }
    y_.mix(block, of_y);
  }
}

void Tracking::send(Block& block, const Outgoing& outgoing, bool finite) {
  if (outgoing.values != nullptr) finite = y_.write(block, second_vector(outgoing, block)) && finite;
  start(exchange(), block, finite);
}

}  // namespace starling
