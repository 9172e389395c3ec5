// The local optimizer as a scheme sees it. It is a rule of Starling's, applied in a block's one
// pass, or another optimizer, whose step() updates all parameters at once.
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

  // `rule`: the rule of each parameter group. Its options are read again in every step.
  LocalStep(std::vector<Block>& blocks, RuleOf rule, Clipping& clipping)
      : blocks_(blocks), rule_(std::move(rule)), clipping_(&clipping) {}
  // `step`: another optimizer's step(), which reads .grad as it is. `clipping` may skip it.
  LocalStep(std::vector<Block>& blocks, std::function<void()> step, Clipping& clipping)
      : blocks_(blocks), other_(std::move(step)), clipping_(&clipping) {}

  // Whether rule(), lr() and scale() may be called. Otherwise only all() may.
  bool is_fused() const { return rule_ != nullptr; }
  const Rule& rule(const Block& block) const { return rule_(block.group); }
  // The learning rate of the block's rule.
  double lr(const Block& block) const;
  // Returns the factor of this step's gradients; none: the step is skipped. Call it once per step.
  // Reads the gradients only with clipping or skipping. `sum_of_squares` replaces the default,
  // which reads all blocks.
  std::optional<float> scale(const std::function<double()>& sum_of_squares = {});
  // The whole step on all parameters, without mixing. `weights`: one per block, see decay_times().
  void all(std::span<const double> weights = {});

 private:
  std::vector<Block>& blocks_;
  RuleOf rule_{};
  std::function<void()> other_{};
  Clipping* clipping_;
};

}  // namespace starling
