// Adapt-then-combine: Lopes & Sayed 2008; for deep learning Ying et al. 2021, BlueFog (arXiv 2111.04287).
//
//   x_i(t+1) = Sum_j W_ij ( keep x_j(t) - lr u(g_j(x_j(t))) )      keep: AdamW's weight decay, else 1
//
// What is mixed depends on this step's gradients, so an exchange cannot hide behind the next iteration as with CTA.
// Block after block is updated and sent, then block after block is waited for and mixed: the link works while later
// blocks are updated, and a step takes F + B + max(U, C).
#pragma once

#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

class Atc final : public Scheme {
 public:
  Atc(std::vector<Block>& blocks, Exchange& exchange, RuleOf rule, Clipping& clipping)
      : blocks_(blocks), exchange_(exchange), rule_(rule), clipping_(clipping) {}

  void begin() override {}
  void step() override;

 private:
  std::vector<Block>& blocks_;
  Exchange& exchange_;
  RuleOf rule_;
  Clipping& clipping_;
};

}  // namespace starling
