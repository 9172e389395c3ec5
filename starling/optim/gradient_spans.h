// When backward() has the gradients of each block: spans of a timeline. Only where one is kept.
#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

#include "starling/core/clock.h"
#include "starling/core/timeline.h"
#include "starling/optim/backward_hooks.h"
#include "starling/optim/blocks.h"

namespace starling {

// The span of a block begins where that of the block before ended, the first one's with the first gradient of the pass. A
// block some of whose parameters get none in a pass is recorded at its end, with no length.
// On a GPU these are the times at which backward put its work into the GPU's streams.
class GradientSpans {
 public:
  // Of these blocks, which stay as they are; `timeline` outlives this.
  GradientSpans(const std::vector<Block>& blocks, Timeline& timeline);

 private:
  void begin_pass();
  void end_pass();
  void accumulated(std::size_t parameter);
  void add(std::size_t block, Time begin, Time end);

  const std::vector<Block>& blocks_;
  Timeline& timeline_;
  std::vector<std::vector<std::size_t>> holders_;  // of each parameter: the blocks that hold it
  std::mutex mutex_;  // torch has a thread for each device; guards what follows, of this pass:
  bool in_pass_ = false;
  std::vector<bool> there_;           // the parameter's gradient
  std::vector<std::size_t> missing_;  // of each block: gradients
  Time recorded_{};                   // the end of the latest span
  Time latest_{};                     // the latest gradient
  BackwardHooks hooks_;               // last: they call the others
};

}  // namespace starling
