// Two workers average, as in AD-PSGD and A2CiD2 (a2cid2.h). The momentum is mixed in before a block
// is sent. Both ends add the same difference of the two sent blocks, whatever their gradients did
// to x in the meantime:
//
//   committed   x += alpha (q_j - q_i),  x~ += alpha~ (q_j - q_i)      q: x as it was sent
//
// So the sum of all x + x~ is kept (without momentum that of all x).
#include "starling/gossip/pair_algorithm.h"

namespace starling {
namespace {

class PairAveraging final : public PairAlgorithm {
 public:
  explicit PairAveraging(const A2cid2& momentum) : momentum_(momentum) {}

  Beside beside() const override { return {.x_tilde = momentum_.eta != 0}; }
  double eta() const override { return momentum_.eta; }
  Direction direction(bool) const override { return {}; }
  std::size_t bytes(Wire wire, std::size_t size) const override { return block_bytes(wire, size); }

  bool send(HeldBlock& block, double eta_tau, const kernels::WireBlock& to, bool) const override {
    return block.send(eta_tau, to, 1);
  }
  kernels::Measured take(HeldBlock& block, double eta_tau, const SentBlock& theirs, const SentBlock& mine,
                         bool) const override {
    return block.average(eta_tau, A2cid2::alpha, static_cast<float>(momentum_.alpha_tilde), theirs, mine);
  }

 private:
  const A2cid2 momentum_;
};

}  // namespace

std::string_view PairAlgorithm::flaw(const SentBlock& theirs, std::size_t) const {
  return theirs.may_be_read() ? "" : "on a grid out of range";
}

std::shared_ptr<const PairAlgorithm> pair_averaging(const A2cid2& momentum) {
  return std::make_shared<PairAveraging>(momentum);
}

}  // namespace starling
