// Asynchronous gradient push: Assran & Rabbat 2021 (arXiv 1803.08950), on directed graphs. The
// asker pushes half of its mass w to the worker that it asks; nothing goes the other way. x is then
// z, and mass moves as in optim/schemes/push_sum.cpp, with m = w_j / 2 and q = x_j as they were
// sent:
//
//   committed: w_i += m,  x_i += m / w_i (q - x_i)   at the worker that was asked
//              w_j -= m,  x_j -= m / w_j (q - x_j)   at the asker, also while in doubt or given up:
//                                                    it comes back if it was not taken
//
// So the sums of all w and of all w x are kept.
#include "starling/exchange/weight.h"
#include "starling/gossip/pair_algorithm.h"

namespace starling {
namespace {

class PairPush final : public PairAlgorithm {
 public:
  Beside beside() const override { return {.weight = true}; }
  StandBy stand_by() const override { return StandBy::declines; }
  Direction direction(bool i_asked) const override { return {.send = i_asked, .receive = !i_asked}; }
  std::size_t bytes(Wire wire, std::size_t size) const override {
    return block_bytes(wire, size + kWeightValues);
  }

  bool send(HeldBlock& block, double eta_tau, const kernels::WireBlock& to, bool) const override {
    const bool finite = block.send(eta_tau, to, 1);
    const Held held = block.now();
    write_weight(held.weight, to.wire, static_cast<std::byte*>(to.values) + bytes_of(to.wire, held.x.size()));
    return finite;
  }
  std::string_view flaw(const SentBlock& theirs, std::size_t size) const override {
    if (!theirs.may_be_read()) return PairAlgorithm::flaw(theirs, size);
    return weight_of(theirs, size) >= 0 ? "" : "with a weight below 0";
  }
  kernels::Measured take(HeldBlock& block, double, const SentBlock& theirs, const SentBlock&,
                         bool) const override {
    move(block, kPushed, theirs);
    return {};
  }
  void give(HeldBlock& block, const SentBlock& mine) const override { move(block, -kPushed, mine); }
  void take_back(HeldBlock& block, const SentBlock& mine) const override { move(block, kPushed, mine); }

 private:
  static constexpr double kPushed = 0.5;  // share of a worker's mass

  // Moves this share of the sent mass to this block.
  static void move(HeldBlock& block, double share, const SentBlock& q) {
    const Held held = block.now();
    const double mass = share * weight_of(q, held.x.size());
    if (mass == 0) return;
    held.weight += mass;
    block.move_towards(q, static_cast<float>(mass / held.weight));
  }
};

}  // namespace

std::shared_ptr<const PairAlgorithm> pair_push() { return std::make_shared<PairPush>(); }

}  // namespace starling
