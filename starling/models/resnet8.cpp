#include "starling/models/resnet8.h"

#include <ATen/ops/linear.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "starling/models/convolution.h"

namespace starling {

namespace {

namespace nn = torch::nn;

// A 1x1 convolution as a matrix product. With few channels, backward() of oneDNN's 1x1 convolution
// (torch 2.11 to 2.15, channels-last, AVX2 and AVX-512) writes past its memory.
at::Tensor product(const nn::Conv2d& conv, const at::Tensor& x, std::int64_t stride) {
  const at::Tensor kept = x.slice(2, 0, x.size(2), stride).slice(3, 0, x.size(3), stride);
  return at::linear(kept.permute({0, 2, 3, 1}), conv->weight.flatten(1)).permute({0, 3, 1, 2});
}

struct ResidualBlock : nn::Module {
  ResidualBlock(int in, int out, int stride, at::ScalarType type)
      : stride(stride),
        conv1(register_module("conv1", convolution(in, out, 3, stride, type))),
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
    return y.add_(shortcut ? shortcut_norm(product(shortcut, x, stride)) : x).relu_();
  }
  const int stride;
  nn::Conv2d conv1;
  nn::BatchNorm2d norm1;
  nn::Conv2d conv2;
  nn::BatchNorm2d norm2;
  nn::Conv2d shortcut{nullptr};
  nn::BatchNorm2d shortcut_norm{nullptr};
};

class ResNet8 final : public Classifier {
 public:
  explicit ResNet8(const ResNet8Options& o)
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

std::shared_ptr<Classifier> make_resnet8(const ResNet8Options& options) {
  return std::make_shared<ResNet8>(options);
}

}  // namespace starling
