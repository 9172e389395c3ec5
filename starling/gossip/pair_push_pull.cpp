// Asynchronous push-pull (optim/schemes/async_push_pull.cpp). A push carries x and the tracked
// gradient y, with q_x = x_j and q_y = y_j as they were sent:
//
//   committed: x_i += 1/2 (q_x - x_i),  y_i += 1/2 q_y   at the asked worker, which pulls x
//              y_j -= 1/2 q_y                            at the asker, like a push-sum's mass
//
// So the sum of all y is kept, and there is no w. A worker that stands by sends 2 y to one
// neighbour, and so hands over all of it.
#include "starling/gossip/pair_algorithm.h"

namespace starling {
namespace {

class PairPushPull final : public PairAlgorithm {
 public:
  Beside beside() const override { return {.y = true}; }
  StandBy stand_by() const override { return StandBy::hands_over; }
  Direction direction(bool i_asked) const override { return {.send = i_asked, .receive = !i_asked}; }
  std::size_t bytes(Wire wire, std::size_t size) const override { return block_bytes(wire, 2 * size); }

  bool send(HeldBlock& block, double eta_tau, const kernels::WireBlock& to, bool all) const override {
    return block.send(eta_tau, to, all ? 1 / kPushed : 1);
  }
  kernels::Measured take(HeldBlock& block, double, const SentBlock& theirs, const SentBlock&,
                         bool late) const override {
    if (!late) block.move_towards(theirs, kPulled);  // there is no sum that an old x would restore
    block.add_tracked(theirs, kPushed);
    return {};
  }
  void give(HeldBlock& block, const SentBlock& mine) const override { block.add_tracked(mine, -kPushed); }
  void take_back(HeldBlock& block, const SentBlock& mine) const override { block.add_tracked(mine, kPushed); }

 private:
  static constexpr float kPulled = 0.5;  // share of the way to the other's x
  static constexpr float kPushed = 0.5;  // share of a worker's y
};

}  // namespace

std::shared_ptr<const PairAlgorithm> pair_push_pull() { return std::make_shared<PairPushPull>(); }

}  // namespace starling
