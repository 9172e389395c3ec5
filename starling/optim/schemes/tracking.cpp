#include "starling/optim/schemes/tracking.h"

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
    update_and_send(block, Rule{}, {}, std::nullopt);
    settle({&block, 1});  // if the next block fails, the connection ends
  }
}

void Tracking::step() {
  mix_tracked();
  track();
  if (local_.is_fused()) {
    const auto scale = local_.scale();
    for (Block& block : blocks_) update_and_send(block, local_.rule(block), arrived(block), scale);
    return;
  }
  for (Block& block : blocks_) mix(block, arrived(block), {});
  local_.all();
  for (Block& block : blocks_) update_and_send(block, Rule{}, {}, std::nullopt);
}

void Tracking::track() {
  tracker_.track(
      [this](const auto& f) {
        for (const Block& block : blocks_) f(block, m_.of(block), y_.of(block));
      },
      beta_, world_.log);
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

void Tracking::update_and_send(Block& block, const Rule& rule, std::span<const Arrival> arrived,
                               std::optional<float> scale) {
  update_and_write(block, rule, arrived, exchange().outgoing(block.index), scale, y_,
                   then_start(exchange(), block));
}

}  // namespace starling
