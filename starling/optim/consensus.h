// The average model: while training stands still, or once without an optimizer.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace starling {

class Optimizer;
struct World;

// While it lives, the module holds the average over all workers; afterwards each worker's own
// values. Parameters (of bfloat16 and float16 the masters, then rounded) and floating-point buffers
// are exact means, with push-sum's weights for parameters. Integer buffers (counters) take the
// maximum. Collective: every worker must make one at the same step.
class Consensus {
 public:
  explicit Consensus(Optimizer& optimizer);
  ~Consensus();
  Consensus(const Consensus&) = delete;
  Consensus& operator=(const Consensus&) = delete;

  int workers() const;      // that took part in the average
  int first() const;        // the lowest rank of these
  double distance() const;  // as Optimizer::consensus_distance()
  void keep();              // keeps the average in the module

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The average without an optimizer, once, as after training: it makes its own connections, which
// Consensus has already. Each tensor becomes its average over all workers of the world, exact up to
// rounding to fp32; integers and booleans become their maximum. Collective, and counted with the
// world's optimizers: all workers construct and average in the same order, with equal types and
// sizes. Returns how many took part. Blocks and throws as Optimizer's constructor and average().
int average(const std::vector<at::Tensor>& tensors, const World& world);

}  // namespace starling
