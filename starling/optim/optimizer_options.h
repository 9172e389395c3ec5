// The options of the Optimizer.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "starling/kernels/wire.h"
#include "starling/optim/loss_scale.h"
#include "starling/optim/scheme_choice.h"

namespace starling {

struct Options {
  // A name of make_schedule(), or a .toml or .json file. Unused by schemes without a topology.
  std::string topology = "base-2";
  // The scheme's name and options (scheme_choice.h); see `starling schemes` and docs/schemes.md.
  SchemeChoice scheme{};
  // Number format between workers (docs/wires.md); unused by all-reduce. bf16 and fp16 halve the
  // bytes; workers agree to the last bit of the format. int8 and int4 send 1/4 and 1/8; workers
  // agree better the closer they already are. Every format keeps the sum of all parameters.
  Wire wire = Wire::fp32;
  std::uint64_t seed = 0;  // of asynchronous times and pairs; runs differ with messages' arrival
  // random-k: each round sends and mixes one value in `one_in` (1 to 1024), in the format of
  // `wire`, the same ones on all workers. `one_in` periods of the topology send each value once
  // (docs/wires.md). Bytes and mixing shrink by this factor. Top-k schemes send the values that
  // changed most since they were sent, with their indices (8 bytes each).
  int one_in = 1;
  // H: only every so many steps is one of the scheme's. The steps between are the local rule's
  // alone. Needs a scheme that takes local steps (`starling schemes NAME`).
  int every = 1;
  // After every so many steps, step() makes all workers go on from their mean: Gossip-PGA (Chen et
  // al. 2021, arXiv 2105.09080). Unlike Consensus::keep(), it leaves the scheme's momentum or
  // tracked gradients. Needs a scheme with rounds, and is a multiple of `every`. 0: never.
  int mean_every = 0;
  // The optimizer of what workers merge to (outer.h): "none", "sgd" or "nesterov". It steps after
  // each mean of mean_every. Without these it steps after each exchange, with a scheme that takes
  // it (`starling schemes NAME`). A change of the parameters by hand counts as a local step. The
  // next five are its own. A scheme with an outer step of its own uses the first two.
  std::string outer = "none";
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  // Momentum warm-up of Pier (outer.h): for so many steps at the start, a multiple of mean_every,
  // each step of the scheme's ends with a mean. Outer steps only gather momentum. 0: none.
  int outer_warmup = 0;
  // Changes of outer_lr and outer_momentum over the steps of the run: points STEP:VALUE, such as
  // "10000:0 20000:1.1", with straight lines between them. Two points of one step are a jump after
  // it. Up to the first point's step the plain option holds. Empty: always.
  std::string outer_lr_at{};
  std::string outer_momentum_at{};
  // "node": each node of workers_per_node consecutive ranks gossips as one, and averages its
  // gradients. A worker keeps the state of its share of the blocks, and exchanges these with the
  // same place on other nodes. Needs a scheme that supports it and a rule of Starling's. clip
  // applies to the node's mean gradient, NoSync works as with all-reduce, Statistics::bytes_sent
  // counts bytes to other nodes. "none": every worker for itself.
  std::string hierarchy = "none";
  int workers_per_node = 0;             // also for schedules with nodes; 0: the launcher's number
  std::int64_t block_bytes = 25 << 20;  // largest block: min(block_bytes, total / 8), at least 256 KB
  // Timeout of step() for a late neighbour that is alive, above 0; unset: World::timeouts.stalled.
  // The worker then goes on without it, and runs are no longer bit-equal.
  std::optional<std::chrono::milliseconds> max_wait{};
  // Refuses a neighbour's block that is so many times as far from this worker's as usual, at least
  // 2: silent corruption, or a worker that diverges (exchange/jump_guard.h). 0: none. It reads each
  // block that arrives once more. Groups then exchange in pairs. Needs fp32, bf16 or fp16 on the
  // wire, and a scheme that exchanges parameters.
  double jump_guard = 0;
  // Largest norm of this worker's gradient, or (all-reduce) of the mean gradient; 0: no limit.
  // step() scales a larger one down, not .grad. This, skip_not_finite or both read gradients once.
  double clip = 0;
  // A step whose gradient is not finite only mixes, and counts as skipped.
  bool skip_not_finite = false;
  // step() zeroes .grad in the pass that reads it. This replaces zero_grad() and is cheaper:
  // nothing is allocated, or cleared separately. Needs a rule of Starling's.
  bool clear_gradients = false;
  // For float16: multiply the loss by loss_scale() before backward(); step() divides the gradient
  // by it. A step whose gradient is not finite only mixes, counts as skipped, and halves this
  // worker's scale. With all-reduce, all workers share these. Needs a rule of Starling's. Unset: 1.
  std::optional<LossScaling> loss_scaling{};
};

}  // namespace starling
