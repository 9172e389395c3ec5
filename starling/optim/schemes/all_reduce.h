// The baseline: gradients averaged over all workers, then the same local step everywhere.
//
//   x <- x - lr u(1/n Sum_j g_j)
//
// Bucketed by block, inside step(): all buckets are started, then each is waited for and applied while the later ones
// are still under way; to be clipped, the mean gradient must be there as a whole first. A parameter is updated where at least one worker has a gradient for it; where a worker has none
// it counts as zero.
#pragma once

#include <functional>
#include <vector>

#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/transport/c10d/collectives.h"

namespace starling {

class AllReduce final : public Scheme {
 public:
  using RuleOf = std::function<const Rule&(int group)>;
  AllReduce(std::vector<Block>& blocks, Collectives& collectives, int workers, RuleOf rule,
            Clipping& clipping)
      : blocks_(blocks), collectives_(collectives), workers_(workers), rule_(rule), clipping_(clipping) {}

  void begin() override {}
  void step() override;
  std::uint64_t bytes_computed() const override { return bytes_; }
  double seconds_waiting() const override { return waiting_; }

 private:
  std::vector<Block>& blocks_;
  Collectives& collectives_;
  const int workers_;
  RuleOf rule_;
  Clipping& clipping_;
  std::uint64_t bytes_ = 0;
  double waiting_ = 0;
};

}  // namespace starling
