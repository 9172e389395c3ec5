// ResNet for small images (He, Zhang, Ren & Sun 2016, section 4.2): 6n+2 layers, here n = 1.
//
//   3x3 convolution to w channels
//   3 stages of w, 2w and 4w channels: a residual block of two 3x3 convolutions each; the second
//   and the third stage halve the image
//   mean over the image
//   linear layer
//
// Batch normalisation follows every convolution. If a block changes the shape, its shortcut is a
// 1x1 convolution (option B of the paper).
#pragma once

#include <memory>

#include "starling/models/classifier.h"

namespace starling {

struct ResNet8Options {
  int channels = 1;
  int classes = 10;
  int width = 16;
  at::ScalarType type = at::kFloat;  // of convolutions, the linear layer and activations
};

// Draws the weights from torch's global generator (He initialisation).
std::shared_ptr<Classifier> make_resnet8(const ResNet8Options& options);

}  // namespace starling
