#include "starling/models/resnet.h"

#include <algorithm>
#include <array>
#include <vector>

#include <ATen/ops/max_pool2d.h>
#include <fmt/format.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "starling/core/error.h"
#include "starling/models/convolution.h"
#include "starling/models/recompute.h"

namespace starling {

namespace {

namespace nn = torch::nn;

struct Blocks {
  int depth;
  std::array<int, 4> count;
  bool bottleneck;  // blocks of three convolutions
};
constexpr std::array kResNets{Blocks{18, {2, 2, 2, 2}, false}, Blocks{34, {3, 4, 6, 3}, false},
                              Blocks{50, {3, 4, 6, 3}, true}, Blocks{101, {3, 4, 23, 3}, true}};

struct Residual : nn::Module {
  Residual(int in, int width, int stride, bool bottleneck, const ResNetOptions& o) {
    const int out = bottleneck ? 4 * width : width;
    const auto add = [&](int from, int to, int size, int step) {
      const std::size_t i = convolutions.size() + 1;
      convolutions.push_back(
          register_module(fmt::format("conv{}", i), convolution(from, to, size, step, o.type)));
      norms.push_back(register_module(fmt::format("bn{}", i), nn::BatchNorm2d(to)));
    };
    if (bottleneck) {
      add(in, width, 1, 1);
      add(width, width, 3, stride);
      add(width, out, 1, 1);
    } else {
      add(in, width, 3, stride);
      add(width, width, 3, 1);
    }
    if (o.zero_init) nn::init::zeros_(norms.back()->weight);
    if (in != out || stride != 1)
      downsample = register_module(
          "downsample", nn::Sequential(convolution(in, out, 1, stride, o.type), nn::BatchNorm2d(out)));
  }

  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (std::size_t i = 0; i < convolutions.size(); ++i) {
      y = norms[i](convolutions[i](y));
      if (i + 1 < convolutions.size()) y = y.relu_();
    }
    return y.add_(downsample ? downsample->forward(x) : x).relu_();
  }

  std::vector<nn::Conv2d> convolutions;
  std::vector<nn::BatchNorm2d> norms;
  nn::Sequential downsample{nullptr};
};

class ResNet final : public Classifier {
 public:
  explicit ResNet(const ResNetOptions& o)
      : small_images_(o.small_images),
        recompute_(o.recompute),
        conv1_(register_module(
            "conv1", o.small_images ? convolution(3, 64, 3, 1, o.type) : convolution(3, 64, 7, 2, o.type))),
        bn1_(register_module("bn1", nn::BatchNorm2d(64))) {
    const Blocks& kind = *std::ranges::find(kResNets, o.depth, &Blocks::depth);
    int channels = 64;
    for (int layer = 0; layer < 4; ++layer) {
      const int width = 64 << layer;
      nn::Sequential blocks;
      for (int i = 0; i < kind.count[static_cast<std::size_t>(layer)]; ++i) {
        const int stride = i == 0 && layer > 0 ? 2 : 1;
        blocks->push_back(Residual(channels, width, stride, kind.bottleneck, o));
        channels = kind.bottleneck ? 4 * width : width;
      }
      layers_.push_back(register_module(fmt::format("layer{}", layer + 1), blocks));
    }
    fc_ = register_module("fc", nn::Linear(channels, o.classes));
    fc_->to(o.type);
  }

  at::Tensor forward(at::Tensor x) override {
    x = x.to(fc_->weight.scalar_type()).contiguous(at::MemoryFormat::ChannelsLast);
    x = bn1_(conv1_(x)).relu_();
    if (!small_images_) x = at::max_pool2d(x, 3, 2, 1);
    for (nn::Sequential& layer : layers_) {
      for (std::size_t i = 0; i < layer->size(); ++i) {
        auto& block = *layer[i]->as<Residual>();
        x = recompute_
                ? recomputed(block, [&block](const auto& inputs) { return block.forward(inputs[0]); }, {x})
                : block.forward(x);
      }
    }
    return fc_(x.mean({2, 3})).to(at::kFloat);
  }

 private:
  const bool small_images_, recompute_;
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  std::vector<nn::Sequential> layers_;
  nn::Linear fc_{nullptr};
};

}  // namespace

void check_resnet_depth(int depth, const std::string& where) {
  if (std::ranges::count(kResNets, depth, &Blocks::depth) == 0)
    throw UsageError(fmt::format("{} = {}: wants 18, 34, 50 or 101", where, depth));
}

std::shared_ptr<Classifier> make_resnet(const ResNetOptions& options) {
  check_resnet_depth(options.depth, "depth");
  return std::make_shared<ResNet>(options);
}

}  // namespace starling
