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
// lr and momentum may change over the steps of the run (Options::outer_lr_at, outer_momentum_at).
//
// Pier (Fan, Zhang 2025, arXiv 2511.17849) is DiLoCo with a momentum warm-up and a momentum decay.
// In the warm-up, the first Options::outer_warmup steps, workers take a mean after each step. The
// outer step gathers momentum, but does not move:
//
//   m        <- momentum m + Delta
//   theta    <- x
//
// After it, momentum falls from 0.99 to 0.9, and lr rises from 0 to 1.1 and falls to 0.9
// (docs/choosing.md). The abstract names both; the equations are those of the authors' code
// (github.com/zetsunozomi/Pier-LLM-Pretraining, megatron/training/training.py at 3512df20). Its
// warm-up averages gradients. This one averages parameters, so Adam's moments stay each worker's.
//
// With lr 1 and momentum 0 it changes nothing. An exchange of random-k (Options::one_in) merges a
// part of the values. Only this part takes an outer step then.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/optim/blocks.h"
#include "starling/optim/course.h"
#include "starling/optim/optimizer_options.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {

class Outer {
 public:
  // Throws UsageError for points that are no Course.
  Outer(const Options& options, bool nesterov);

  // New blocks begin at their parameters, without momentum.
  void attach(std::vector<Block>& blocks);
  // Whether the step that is made now is one of the warm-up.
  bool warms_up() const { return steps_ < warmup_; }
  // All blocks begin so. The steps of the run count on.
  void restart(std::vector<Block>& blocks);
  // The parameters are the merged point: what the exchange's last round has mixed of them; null:
  // all. They become theta.
  void step(std::vector<Block>& blocks, const Exchange* exchange);
  // The same with a block's merged values, of which the mask chooses.
  void step(const Block& block, const at::Tensor& merged, const Mask& mask);
  // "outer.start" is theta, "outer.momentum" m. "outer_steps", if there is a warm-up or a change of
  // lr or momentum, is the number of steps up to the last outer one.
  void state(StateVisitor& visitor);

 private:
  const bool nesterov_;
  const Course lr_, momentum_;
  const std::uint64_t period_;  // steps from one outer step to the next
  const std::uint64_t warmup_;
  const bool counts_;
  std::uint64_t steps_ = 0;  // of the run, up to the last outer one
  Vectors theta_{Fresh::parameter}, m_;
};

}  // namespace starling
