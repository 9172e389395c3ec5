// The outer optimizer: an optimizer of what workers merge to after local steps. The merged point is
// their exact mean (Options::mean_every), or what an exchange leaves (schemes that say so).
//
//   Delta    theta - x        theta is where the last outer step ended, x the merged point
//   m        <- momentum m + Delta,  m = 0 at first
//   theta    <- theta - lr m                      "sgd"
//   theta    <- theta - lr (Delta + momentum m)   "nesterov"
//   x        <- theta                             local steps go on from it
//
//   mean, nesterov       DiLoCo: Douillard et al. 2023 (arXiv 2311.08105)
//   mean, sgd            SlowMo: Wang et al. 2020 (arXiv 1910.00643), at a constant learning rate
//   exchange, sgd        NoLoCo: Kolehmainen et al. 2025 (arXiv 2506.10911), over random pairs
//
// With lr 1 and momentum 0 it changes nothing. An exchange of random-k (Options::one_in) merges a
// part of the values. Only this part takes an outer step then.
#pragma once

#include <vector>

#include "starling/optim/blocks.h"
#include "starling/optim/optimizer_options.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {

class Outer {
 public:
  // The options outlive it.
  Outer(const Options& options, bool nesterov) : options_(options), nesterov_(nesterov) {}

  // New blocks begin at their parameters, without momentum.
  void attach(std::vector<Block>& blocks);
  // All blocks do.
  void restart(std::vector<Block>& blocks);
  // The parameters are the merged point: what the exchange's last round has mixed of them; null:
  // all. They become theta.
  void step(std::vector<Block>& blocks, const Exchange* exchange);
  // The same with a block's merged values, of which the mask chooses.
  void step(const Block& block, const at::Tensor& merged, const Mask& mask);
  // "outer.start" is theta, "outer.momentum" m.
  void state(StateVisitor& visitor);

 private:
  const Options& options_;
  const bool nesterov_;
  Vectors theta_{Fresh::parameter}, m_;
};

}  // namespace starling
