// The average model: while training stands still, or once without an optimizer.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace starling {

class Exchange;
class Optimizer;
class Scheme;
struct World;

// While it lives, the module holds the average over all workers; afterwards each worker's own
// values. Parameters (of bfloat16 and float16 the masters, then rounded) and floating-point and
// complex buffers are exact means, with push-sum's weights for parameters. Integer buffers
// (counters) take the maximum. A worker whose parameters are not finite is left out, its buffers
// too: it logs a warning, and gets the average of the others. So is one that knows, by the
// jump_guard, that its parameters have jumped. So is a worker of a buffer in which it has a NaN.
// Collective: every worker must make one at the same step. Throws UsageError on all if
// set_buffers() was given buffers that differ between workers, Error on all if no worker's
// parameters are finite.
class Consensus {
 public:
  explicit Consensus(Optimizer& optimizer);
  ~Consensus();
  Consensus(const Consensus&) = delete;
  Consensus& operator=(const Consensus&) = delete;

  int workers() const;  // whose parameters are in the average
  // The lowest rank of these; -1 if the others have ended the average without this worker.
  int first() const;
  double distance() const;  // as Optimizer::consensus_distance()
  // Collective: keeps the average in the module, and the next step starts from it
  // (Optimizer::begin_again()).
  void keep();

 private:
  friend class Optimizer;
  // As keep(). `change` changes the average first, alike on all workers. `go_on` tells the scheme.
  void keep(const std::function<void()>& change, const std::function<void(Scheme&)>& go_on);

  struct State;
  std::unique_ptr<State> state_;
};

// While it lives, this worker's averages, maxima, Consensus and checkpoints are parts of one
// operation. A worker that was away from the first average is asked for none of the others, so what
// it calls instead does not matter. Collective; may be nested.
class Operation {
 public:
  explicit Operation(Optimizer& optimizer);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  Optimizer& optimizer_;
};

// The average without an optimizer, once, as after training: it makes its own connections, which
// Consensus has already. Each tensor becomes its average over all workers of the world, exact up to
// rounding to fp32, or to fp64 for float64 and complex128; integers and booleans become their
// maximum. A worker with a NaN in a tensor is left out of that tensor, and logs a warning.
// Collective, and counted with the world's optimizers: all workers construct and average in the
// same order, with equal types and sizes. Returns how many took part. Blocks and throws as
// Optimizer's constructor and average().
int average(const std::vector<at::Tensor>& tensors, const World& world);

}  // namespace starling
