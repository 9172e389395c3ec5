#include "starling/models/convolution.h"

#include <ATen/ops/empty.h>
#include <torch/nn/init.h>

namespace starling {

torch::nn::Conv2d convolution(int in, int out, int size, int stride, at::ScalarType type) {
  torch::nn::Conv2d conv(
      torch::nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  torch::nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  torch::NoGradGuard no_grad;
  // A copy, since contiguous() does not change a weight of one input channel: it has the same
  // layout in both formats, and torch would compute this convolution and the following layers in
  // the slower format.
  const auto options = conv->weight.options().dtype(type).memory_format(at::MemoryFormat::ChannelsLast);
  conv->weight.set_data(at::empty(conv->weight.sizes(), options).copy_(conv->weight));
  return conv;
}

}  // namespace starling
