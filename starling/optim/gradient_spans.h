// Timeline spans of backward(): when the gradients of each block were ready. Used only with a
// timeline.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "starling/core/clock.h"
#include "starling/core/timeline.h"
#include "starling/optim/backward_hooks.h"
#include "starling/optim/blocks.h"

namespace starling {

// A block's span begins at the end of the previous block's span; the first span begins with the
// pass's first gradient. If some parameters of a block get no gradient in a pass, the block is
// recorded at the end of the pass, with length 0. On a GPU, the times are those at which backward()
// put its work into the GPU's streams.
class GradientSpans {
 public:
  // The blocks must not change afterwards; `timeline` outlives this object.
  GradientSpans(const std::vector<Block>& blocks, Timeline& timeline);

 private:
  void begin_pass();
  void end_pass();
  void accumulated(std::size_t parameter);
  void add(std::size_t block, Time begin, Time end);

  const std::vector<Block>& blocks_;
  Timeline& timeline_;
  std::vector<std::vector<std::size_t>> holders_;  // by parameter: the blocks that hold it
  std::mutex mutex_;  // torch has one thread per device; guards the following, of this pass
  bool in_pass_ = false;
  std::vector<bool> there_;           // by parameter: its gradient is there
  std::vector<std::size_t> missing_;  // by block: missing gradients
  Time recorded_{};                   // end of the latest span
  Time latest_{};                     // time of the latest gradient
  BackwardHooks hooks_;               // last: they call the others
};

}  // namespace starling
