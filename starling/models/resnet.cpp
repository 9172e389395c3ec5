#include "starling/models/resnet.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace starling {

namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(int in, int out, int size, int stride, at::ScalarType type) {
  nn::Conv2d conv(nn::Conv2dOptions(in, out, size).stride(stride).padding(size / 2).bias(false));
  nn::init::kaiming_normal_(conv->weight, 0, torch::kFanOut, torch::kReLU);
  torch::NoGradGuard no_grad;
  // A copy, since contiguous() does not change a weight of one input channel: it has the same
  // layout in both formats, and torch would compute this convolution and the following layers in
  // the slower format.
  const auto options = conv->weight.options().dtype(type).memory_format(at::MemoryFormat::ChannelsLast);
  conv->weight.set_data(at::empty(conv->weight.sizes(), options).copy_(conv->weight));
  return conv;
}

struct ResidualBlock : nn::Module {
  ResidualBlock(int in, int out, int stride, at::ScalarType type)
      : conv1(register_module("conv1", convolution(in, out, 3, stride, type))),
        norm1(register_module("norm1", nn::BatchNorm2d(out))),
        conv2(register_module("conv2", convolution(out, out, 3, 1, type))),
        norm2(register_module("norm2", nn::BatchNorm2d(out))) {
    if (in != out || stride != 1) {
      shortcut = register_module("shortcut", convolution(in, out, 1, stride, type));
      shortcut_norm = register_module("shortcut_norm", nn::BatchNorm2d(out));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = norm1(conv1(x)).relu_();
    y = norm2(conv2(y));
    return y.add_(shortcut ? shortcut_norm(shortcut(x)) : x).relu_();
  }
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Conv2d shortcut{nullptr};
  nn::BatchNorm2d shortcut_norm{nullptr};
};

class ResNet8 final : public Classifier {
 public:
  explicit ResNet8(const ResNetOptions& o)
      : stem_(register_module("stem", convolution(o.channels, o.width, 3, 1, o.type))),
        stem_norm_(register_module("stem_norm", nn::BatchNorm2d(o.width))),
        stage1_(register_module("stage1", std::make_shared<ResidualBlock>(o.width, o.width, 1, o.type))),
        stage2_(register_module("stage2", std::make_shared<ResidualBlock>(o.width, 2 * o.width, 2, o.type))),
        stage3_(
            register_module("stage3", std::make_shared<ResidualBlock>(2 * o.width, 4 * o.width, 2, o.type))),
        head_(register_module("head", nn::Linear(4 * o.width, o.classes))) {
    head_->to(o.type);
  }

  at::Tensor forward(at::Tensor x) override {
    x = x.to(head_->weight.scalar_type()).contiguous(at::MemoryFormat::ChannelsLast);
    x = stem_norm_(stem_(x)).relu_();
    x = stage3_->forward(stage2_->forward(stage1_->forward(x)));
    return head_(x.mean({2, 3})).to(at::kFloat);
  }

 private:
  nn::Conv2d stem_;
  nn::BatchNorm2d stem_norm_;
  std::shared_ptr<ResidualBlock> stage1_;
  std::shared_ptr<ResidualBlock> stage2_;
  std::shared_ptr<ResidualBlock> stage3_;
  nn::Linear head_;
};

}  // namespace

std::shared_ptr<Classifier> make_resnet8(const ResNetOptions& options) {
  return std::make_shared<ResNet8>(options);
}

}  // namespace starling
