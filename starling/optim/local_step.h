// The local optimizer as a scheme sees it: a rule of Starling's, which a block's one pass applies, or
// another optimizer, whose step() takes all parameters at once.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/rules.h"

namespace starling {

class LocalStep {
 public:
  using RuleOf = std::function<const Rule&(int group)>;

  // The rule of each parameter group. Its options are read anew in every step.
  LocalStep(std::vector<Block>& blocks, RuleOf rule, Clipping& clipping)
      : blocks_(blocks), rule_(std::move(rule)), clipping_(&clipping) {}
  // Another optimizer's step().
  LocalStep(std::vector<Block>& blocks, std::function<void()> step)
      : blocks_(blocks), other_(std::move(step)) {}

  // Whether rule() and scale() are there; else only all() is.
  bool is_fused() const { return rule_ != nullptr; }
  const Rule& rule(const Block& block) const { return rule_(block.group); }
  // The factor of this step's gradients; none: the step is skipped. Once per step. Reads the gradients
  // only if clipping or skipping was asked for; `sum_of_squares` does so in place of all blocks'.
  std::optional<float> scale(const std::function<double()>& sum_of_squares = {});
  // The whole step on all parameters, without mixing. `weights`: of each block, see decay_times().
  void all(std::span<const double> weights = {});

 private:
  std::vector<Block>& blocks_;
  RuleOf rule_{};
  Clipping* clipping_ = nullptr;
  std::function<void()> other_{};
};

}  // namespace starling
