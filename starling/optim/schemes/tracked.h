// Gradient tracking on one segment, for schemes in rounds (tracking.h) and in pairs
// (async_push_pull.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include "starling/optim/blocks.h"

namespace starling {

// m <- beta m + g(x), y <- y + m(new) - m(old), on the segment's part of the block's m and y. A
// parameter that was not used has gradient 0. Returns false, and changes nothing, if the gradient
// is not all finite.
bool track(const Segment& segment, const at::Tensor& m, const at::Tensor& y, double beta = 0);

// Writes y to .grad, where the rule reads it. If no worker has a gradient, there is none. Call it
// after the last track(), since it may replace a .grad of another memory order.
void write_gradient(const Segment& segment, const at::Tensor& y);

}  // namespace starling
