// ResNet for ImageNet (He, Zhang, Ren & Sun 2015), with 18, 34, 50 or 101 layers.
//
//   stem      7x7 convolution of stride 2 to 64 channels, 3x3 max-pooling of stride 2; for images
//             of about 32x32 pixels a 3x3 convolution of stride 1
//   layer1-4  residual blocks of w = 64, 128, 256 and 512 channels; the first block of each layer
//             but layer1 halves the image
//   fc        mean over the image, linear layer
//
//            block                        blocks        parameters (1000 classes)
//   18       3x3, 3x3                     2, 2, 2, 2    11,689,512
//   34       3x3, 3x3                     3, 4, 6, 3    21,797,672
//   50       1x1, 3x3, 1x1 to 4w          3, 4, 6, 3    25,557,032
//   101      1x1, 3x3, 1x1 to 4w          3, 4, 23, 3   44,549,160
//
// Batch normalisation follows every convolution. If a block changes the shape, its shortcut is a
// 1x1 convolution. In a block of three convolutions the 3x3 one has the stride, which is known as
// version 1.5. Parameters are named and laid out as in torchvision, so safetensors files can be
// exchanged.
#pragma once

#include <memory>
#include <string>

#include "starling/models/classifier.h"

namespace starling {

struct ResNetOptions {
  int depth = 50;  // 18, 34, 50 or 101
  int classes = 1000;
  bool small_images = false;  // the stem of 3x3
  // The last batch normalisation of a block starts at 0, so each block starts as the identity
  // (Goyal et al. 2017).
  bool zero_init = true;
  at::ScalarType type = at::kFloat;  // of convolutions, the linear layer and activations
  bool recompute = false;            // the blocks' activations in the backward pass (recompute.h)
};

// Maps float [n, 3, height, width] to logits. Draws the weights from torch's global generator (He
// initialisation). Throws UsageError for another depth.
std::shared_ptr<Classifier> make_resnet(const ResNetOptions& options);
// Throws UsageError for another depth: "WHERE = 20: wants 18, 34, 50 or 101".
void check_resnet_depth(int depth, const std::string& where);

}  // namespace starling
