// Gradient tracking of one worker, for schemes in rounds (tracking.h, push_diging.cpp) and in pairs
// (async_push_pull.cpp).
#pragma once

#include <functional>
#include <span>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "starling/core/log.h"
#include "starling/optim/blocks.h"

namespace starling {

class Tracker {
 public:
  // Calls its argument with each block, its m and its y.
  using EachBlock =
      std::function<void(const std::function<void(const Block&, const at::Tensor& m, const at::Tensor& y)>&)>;

  // m <- beta m + g(x), y <- y + m(new) - m(old) on all blocks. Then y goes to .grad, where the
  // rule reads it. A parameter that was not used has gradient 0; if no worker has used it, it keeps
  // no .grad. A segment whose gradient is not all finite keeps its m, and the first such step logs
  // a warning.
  //
  // `weights`: one per block; empty: all are 1. y is then kept divided by its block's weight: y <-
  // y + (m(new) - m(old)) / weight.
  void track(const EachBlock& each_block, double beta, const Log& log, std::span<const double> weights = {});

 private:
  bool finite_ = true;  // the last gradient was
};

// The block's gradient in fp32; 0 where there is none.
at::Tensor gradient_of(const Block& block);

// Writes the segment's part of y, which has the block's length, to .grad, where the rule reads it.
// A parameter without a gradient gets none if its y is 0, or if it is frozen.
void write_gradient(const Segment& segment, const at::Tensor& y);

inline constexpr std::string_view kTooSmallForFp16 = "of tracked gradients that are small nothing would move";

}  // namespace starling
