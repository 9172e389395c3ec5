// CECA-2P with combine-then-adapt: Ding et al. 2023, DSGD-CECA (arXiv 2306.00256). The rounds stand in topology/ceca.h.
//
//   s   of the two vectors x and h the one that the round sends: the parameters, at which the gradient is taken
//   d   the other one less s
//   y   the s of the worker that this one receives from;  w: what the other vector takes of it
//
//   d <- (1 - w) d + (w - 1/2) (y - s)
//   s <- s + 1/2 (y - s) - lr u(g(s))
//   s <- s + d, d <- -d      where the next round sends the other vector
//
// Both vectors take the same step (with AdamW's decay, which is of the s that is sent next), so that d knows nothing of it. The
// paper adapts first, then combines. Without gradients
// all s are the exact mean after ceil(log2 n) rounds, whatever d was, since the first round forgets it. y - s is the
// difference of what went over the wire, so that every wire keeps the sum of all s, and that of all d, which is 0 (modular
// codes while nothing wraps: kernels/modular.h).
//
// What is lost: in place of a y that does not come a worker takes its own s. Then the sum of all s and that of the other
// vectors miss 1/2 and w times y - s: the mean moves by |y - s| / 2n, and that is counted
// (ExchangeStatistics::directed_aborted), as on all directed edges. Where the swap was in doubt and is mended, both vectors
// take what y - s would have become by then, which restores both sums exactly. Where the edge is one of a pair (n = 2, and the
// last round of even n) an abort costs nothing. Of a worker that is gone every round loses an exchange: the others still come
// together, but neither exactly nor at their mean.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/topology/ceca.h"

namespace starling {

class Ceca2p final : public Scheme {
 public:
  // Blocks without d get it. The exchange has the schedule ceca_2p(workers).
  Ceca2p(std::vector<Block>& blocks, Exchange& exchange, int workers, RuleOf rule, Clipping& clipping);

  void begin() override;
  bool sends_ahead() const override { return true; }
  void step() override;

 private:
  void combine_then_adapt(Block& block, std::uint64_t now, std::optional<float> scale);

  std::vector<Block>& blocks_;
  Exchange& exchange_;
  const std::vector<CecaRound> rounds_;
  RuleOf rule_;
  Clipping& clipping_;
  std::vector<float> zeros_;  // as many as the largest block has
};

}  // namespace starling
