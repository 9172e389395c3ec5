// CECA-2P with combine-then-adapt: Ding et al. 2023, DSGD-CECA (arXiv 2306.00256). topology/ceca.h
// has the rounds.
//
//   x, h  the two vectors of a worker
//   s     the one that the round sends: the parameters, at which the gradient is taken
//   d     the other one less s
//   y     the s that this worker receives;  w: the weight of y in the other vector
//
//   d <- (1 - w) d + (w - 1/2) (y - s)
//   s <- s + 1/2 (y - s) - lr u(g(s))
//   s <- s + d, d <- -d      if the next round sends the other vector
//
// Both vectors take the same step, so d does not contain it. AdamW's decay is that of the s that is
// sent next. The paper adapts first, then combines. Without gradients, all s are the exact mean
// after ceil(log2 n) rounds, whatever d was, since the first round forgets it. y - s is the
// difference of the values on the wire. So every wire keeps the sum of all s, and the sum of all d,
// which is 0. (With modular codes: if nothing wraps, see kernels/modular.h.)
//
// Lost exchanges: if y does not come, a worker takes its own s. The sum of all s then lacks 1/2 (y
// - s), and the sum of the other vectors lacks w (y - s). The mean moves by |y - s| / 2n. This is
// counted (ExchangeStatistics::directed_aborted), as on all directed edges. If the swap was in
// doubt and is mended later, both vectors add what y - s would have become by then, which restores
// both sums exactly. If the edge is one of a pair (n = 2, and the last round of even n), an abort
// costs nothing. If a worker is gone, every round loses one exchange. The others still converge,
// but neither exactly nor to their mean.
#include "starling/optim/schemes/vectors.h"
#include "starling/topology/ceca.h"

namespace starling {
namespace {

class Ceca2p final : public Scheme {
 public:
  explicit Ceca2p(const SchemeParts& parts) : Scheme(parts) {}

  bool sends_ahead() const override { return true; }

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    rounds_ = ceca_2p_rounds(connection.of_members.workers());
    d_.attach(blocks_);
  }

  void begin() override {
    for (Block& block : blocks_) send_again(exchange(), block);
  }

  void step() override {
    const auto scale = local_.scale();
    const std::uint64_t now = exchange().round();
    for (Block& block : blocks_) combine_then_adapt(block, now, scale);
  }

  void restart() override { d_.zero(); }
  void drain() override {
    for (Block& block : blocks_) mix(block, arrived(block, exchange().round()).of_s, {});
  }
  void state(StateVisitor& visitor) override { d_.state(visitor, "apart"); }

 private:
  struct Arrived {
    std::vector<Arrival> of_s, of_d;  // the same, with the weights for s and for d
  };
  Arrived arrived(const Block& block, std::uint64_t now);
  void combine_then_adapt(Block& block, std::uint64_t now, std::optional<float> scale);

  std::vector<CecaRound> rounds_;
  Vectors d_;
};

Ceca2p::Arrived Ceca2p::arrived(const Block& block, std::uint64_t now) {
  std::vector<Arrival> of_s = uploaded(block, finish(exchange(), block)), of_d = of_s;
  for (std::size_t k = 0; k < of_s.size(); ++k) {
    // in this round: 1/2, w - 1/2
    const CecaShares shares = late_shares(rounds_, of_s[k].round, now);
    of_s[k].weight = static_cast<float>(shares.s);
    of_d[k].weight = static_cast<float>(shares.d);
  }
  return {std::move(of_s), std::move(of_d)};
}

void Ceca2p::combine_then_adapt(Block& block, std::uint64_t now, std::optional<float> scale) {
  auto [of_s, of_d] = arrived(block, now);
  const Outgoing outgoing = exchange().outgoing(block.index);
  d_.of(block).mul_(1 - rounds_[(now - 1) % rounds_.size()].w());
  d_.mix(block, of_d);

  const CecaShares turned = shares_of_d(rounds_, now, exchange().round());
  if (turned.s != 0) of_s.push_back(d_.plus(block, static_cast<float>(turned.s)));
  update(block, local_.rule(block), of_s, outgoing, scale, then_start(exchange(), block));
  if (turned.d != 1) d_.of(block).mul_(turned.d);
}

}  // namespace

extern constinit const SchemeInfo scheme_ceca_2p{
    .name = "ceca-2p",
    .summary =
        "cta with a second vector: one send and one receive a round, and the exact mean after "
        "ceil(log2 n) rounds for every n",
    .paper = "arXiv 2306.00256",
    .traits = {.path = Path::ahead,
               .edges = EdgeKind::own,
               .rounds = ceca_2p,
               .all_values = "a value that misses rounds is never averaged exactly",
               .own_rule = "its two vectors take the rule's step together",
               .agrees = Agrees::in_a_period,
               .kept = 1,
               .at_a_join = "the second vector begins anew, at 0"},
    .advice = {.good_for = "the exact mean after the fewest rounds, for any number of workers",
               .when_one_dies = "the others still converge, but neither exactly nor to their mean"},
    .make = make<Ceca2p>,
};

}  // namespace starling
