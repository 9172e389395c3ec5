// Combine-then-adapt (decentralized SGD and Adam): "From Promise to Practice", arXiv 2410.11998; for SGD also Lian et
// al. 2017, D-PSGD.
//
//   x_i(t+1) = Sum_j W_ij x_j(t) - lr u(g_i(x_i(t)))
//
// x_j(t) are the neighbours' parameters of the LAST step, sent at its end: a block has one whole iteration to cross the
// link. W of round t is the schedule's; u is the rule's direction, from the worker's own gradient and state.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

// The step of one block: what the neighbours sent after the last one is mixed in, and what they will need for the next one sent.
void combine_then_adapt(Block& block, Exchange& exchange, const RuleOf& rule, std::optional<float> scale);

class Cta final : public Scheme {
 public:
  Cta(std::vector<Block>& blocks, Exchange& exchange, RuleOf rule, Clipping& clipping)
      : blocks_(blocks), exchange_(exchange), rule_(std::move(rule)), clipping_(clipping) {}

  void begin() override;
  bool sends_ahead() const override { return true; }
  void step() override;

 private:
  std::vector<Block>& blocks_;
  Exchange& exchange_;
  RuleOf rule_;
  Clipping& clipping_;
};

}  // namespace starling
