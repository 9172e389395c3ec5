// Stochastic gradient push: Assran et al. 2019, SGP and overlap SGP (arXiv 1811.10792); push-sum: Kempe, Dobra & Gehrke 2003.
// Graphs may be directed, and give each worker another say:
//
//   p_ij    the share of itself that worker j pushes to i; columns sum to 1, with what it keeps
//   x, w    are pushed: x_i <- Sum_j p_ij x_j,  w_i <- Sum_j p_ij w_j;  w = 1 at first
//   z       x / w: the parameters, at which the gradient is taken; that gradient's step is x's
//
//   x_i <- Sum_j p_ij ( x_j - lr u(g_j(z_j)) )        staleness 0: SGP. Inside step(), as ATC
//   x_i <- Sum_j p_ij x_j - lr u(g_i(z_i))            staleness 1: overlap SGP, which hides as CTA. x_j is of the last step
//   staleness s > 1: overlap SGP over s steps. What is pushed after one is taken s steps later, by its own w as if it had been here
//   until then (the paper takes it away at once, so that its steps meanwhile are longer); then the next one is pushed
//
// x is never there: written for z, to push is to mix with weights that the w choose. When the mass m = p_ij w_j arrives at z_j,
//
//   w_i <- w_i + m        z_i <- z_i + m / w_i (z_j - z_i)
//   w_j <- w_j - m        z_j stays: what it keeps is where it was
//   z <- z - lr / w u     the rule's step
//
// So the kernel of all schemes does it in the same pass. What went over the wire is q_j, z_j rounded, and either end counts with
// that: the sender's mass leaves at q_j, z_j <- z_j - m / w_j (q_j - z_j). So the sum of all w, and of all w z, is kept whatever
// the wire, and whatever is done to the parameters while a push is under way. Where all w stay 1 (balanced graphs without
// losses) this is ATC and CTA.
//
// What is lost: an aborted push stays with its sender, which alone is another p whose columns sum to 1. In doubt it counts as
// given, and comes back if it was not taken (exchange.h); so mass is at one place or, for that while, at none. A worker that dies
// takes its mass along. One to which nobody pushes any more would give away what it has: below kLeastWeight it keeps it.
//
// Each block has its own w, since its pushes commit alone. It travels behind the block's values (exchange/weight.h).
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class PushSum final : public Scheme {
 public:
  // The exchange has Exchanged::pushes, and a tail of kWeightValues.
  PushSum(std::vector<Block>& blocks, Exchange& exchange, int staleness, RuleOf rule, Clipping& clipping)
      : blocks_(blocks),
        exchange_(exchange),
        staleness_(staleness),
        rule_(std::move(rule)),
        clipping_(clipping) {}

  void begin() override;
  bool sends_ahead() const override { return staleness_ > 0; }
  void step() override;

 private:
  bool adapt(Block& block, std::span<const Arrival> mixes, const Outgoing& wire, std::optional<float> scale);
  void adapt_and_push(Block& block, std::span<const Arrival> mixes, std::optional<float> scale);
  std::vector<Arrival> absorb(Block& block);

  std::vector<Block>& blocks_;
  Exchange& exchange_;
  const int staleness_;
  int steps_ = 0;  // since the last push
  RuleOf rule_;
  Clipping& clipping_;
};

}  // namespace starling
