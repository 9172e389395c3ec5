// The convolution of residual networks.
#pragma once

#include <torch/nn/modules/conv.h>

namespace starling {

// A square convolution without bias that keeps the size of the image, but for its stride. Draws the
// weights from torch's global generator (He initialisation) and stores them channels-last: on a
// CPU, a step takes a fifth less time than with torch's default layout.
torch::nn::Conv2d convolution(int in, int out, int size, int stride, at::ScalarType type);

}  // namespace starling
