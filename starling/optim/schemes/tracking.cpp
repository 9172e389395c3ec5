#include "starling/optim/schemes/tracking.h"

#include <vector>

namespace starling {
namespace {

// y's part of a wire block, which lies behind x's.
SentBlock y_of(const SentBlock& both, std::int64_t length) {
  SentBlock y = both;
  y.block.bytes =
      both.bytes().subspan(bytes_of(both.wire, both.mask.chosen_of(static_cast<std::size_t>(length))));
  return y;
}

}  // namespace

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
      a.theirs = y_of(a.theirs, block.length);
      a.mine = y_of(a.mine, block.length);
    }
    y_.mix(block, of_y);
  }
}

void Tracking::send(Block& block, const Outgoing& outgoing, bool finite) {
  if (outgoing.values != nullptr) {
    Outgoing y = outgoing;
    const std::size_t sent = outgoing.mask.chosen_of(static_cast<std::size_t>(block.length));
    y.values = static_cast<std::byte*>(outgoing.values) + bytes_of(outgoing.wire, sent);
    finite = y_.write(block, y) && finite;
  }
  start(exchange(), block, finite);
}

}  // namespace starling
