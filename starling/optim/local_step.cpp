#include "starling/optim/local_step.h"

#include "starling/optim/pass.h"
#include "starling/optim/rule_step.h"

namespace starling {

double LocalStep::lr(const Block& block) const { return rule_values(rule(block)).front(); }

std::optional<float> LocalStep::scale(const std::function<double()>& sum) {
  return clipping_->scale([&] { return sum ? sum() : sum_of_squares(blocks_); });
}

void LocalStep::all(std::span<const double> weights) {
  const auto factor = scale();
  if (!is_fused()) {
    if (factor) other_();
    // It may write past the parameters' version counters, as torch::optim::SGD does.
    for (Block& block : blocks_) {
      for (Segment& s : block.segments) s.as_sent = {};
    }
    return;
  }
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Block& block = blocks_[b];
    if (weights.empty()) {
      update(block, rule(block), {}, {}, factor);
    } else {
      update(block, decay_times(rule(block), weights[b]), {}, {}, factor);
    }
  }
}

}  // namespace starling
