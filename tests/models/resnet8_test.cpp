#include "starling/models/resnet8.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

namespace starling {
namespace {

std::shared_ptr<Classifier> seeded(const ResNet8Options& options) {
  torch::manual_seed(3);
  return make_resnet8(options);
}

bool is_norm(const std::string& parameter) { return parameter.find("norm") != std::string::npos; }

// The network of resnet8.h in plain functions: every tensor contiguous (NCHW), with the parameters
// of `model`.
class Plain {
 public:
  explicit Plain(const Classifier& model)
      : parameters_(model.named_parameters()),
        buffers_(model.named_buffers()),
        training_(model.is_training()) {}

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = norm("stem_norm", convolution("stem", images.contiguous(), 1)).relu();
    x = block("stage3", block("stage2", block("stage1", x, 1), 2), 2);
    return at::linear(x.mean({2, 3}), parameters_["head.weight"], parameters_["head.bias"]);
  }

 private:
  at::Tensor convolution(const std::string& name, const at::Tensor& x, int stride) {
    const at::Tensor weight = parameters_[name + ".weight"].contiguous();
    const std::int64_t padding = weight.size(2) / 2;
    return at::conv2d(x, weight, {}, stride, at::IntArrayRef{padding, padding}).contiguous();
  }
  at::Tensor norm(const std::string& name, const at::Tensor& x) {
    return at::batch_norm(x, parameters_[name + ".weight"], parameters_[name + ".bias"],
                          buffers_[name + ".running_mean"].clone(), buffers_[name + ".running_var"].clone(),
                          training_, 0.1, 1e-5, false);
  }
  at::Tensor block(const std::string& name, const at::Tensor& x, int stride) {
    at::Tensor y = norm(name + ".norm1", convolution(name + ".conv1", x, stride)).relu();
    y = norm(name + ".norm2", convolution(name + ".conv2", y, 1));
    const bool shortcut = parameters_.contains(name + ".shortcut.weight");
    return (y + (shortcut ? norm(name + ".shortcut_norm", convolution(name + ".shortcut", x, stride)) : x))
        .relu();
  }

  torch::OrderedDict<std::string, at::Tensor> parameters_, buffers_;
  const bool training_;
};

TEST(ResNet8, MapsImagesOfAnySizeToOneLogitPerClass) {
  const auto grey = seeded({.width = 8});
  EXPECT_EQ(grey->forward(at::randn({5, 1, 28, 28})).sizes(), (std::vector<std::int64_t>{5, 10}));
  EXPECT_EQ(grey->forward(at::randn({2, 1, 9, 17})).sizes(), (std::vector<std::int64_t>{2, 10}));
  const auto colour = seeded({.channels = 3, .classes = 7, .width = 8});
  EXPECT_EQ(colour->forward(at::randn({4, 3, 32, 32})).sizes(), (std::vector<std::int64_t>{4, 7}));
}

TEST(ResNet8, CountsItsParameters) {
  const auto norm = [](std::int64_t channels) { return 2 * channels; };
  const auto block = [&](std::int64_t in, std::int64_t out) {
    const std::int64_t shortcut = in == out ? 0 : in * out + norm(out);
    return 9 * in * out + norm(out) + 9 * out * out + norm(out) + shortcut;
  };
  for (const auto& [channels, classes, w] : std::vector<std::array<int, 3>>{{1, 10, 16}, {3, 7, 8}}) {
    const std::int64_t expected = 9 * channels * w + norm(w) + block(w, w) + block(w, 2 * w) +
                                  block(2 * w, 4 * w) + 4 * w * classes + classes;
    std::int64_t counted = 0;
    for (const at::Tensor& p : seeded({.channels = channels, .classes = classes, .width = w})->parameters()) {
      EXPECT_TRUE(p.requires_grad());
      counted += p.numel();
    }
    EXPECT_EQ(counted, expected) << channels << " " << classes << " " << w;
  }
}

// In training mode and in evaluation mode, with gradients, to rounding. The plain network computes
// without oneDNN, whose 1x1 convolutions are wrong with few channels (resnet8.cpp).
void expect_the_plain_network(Classifier& model) {
  const at::Tensor images = at::randn({6, 1, 28, 28});
  for (const auto& [name, parameter] : model.named_parameters().pairs()) {
    if (parameter.dim() == 4) {
      EXPECT_TRUE(parameter.is_contiguous(at::MemoryFormat::ChannelsLast)) << name;
    }
  }
  for (const bool training : {true, false}) {
    SCOPED_TRACE(training ? "training" : "evaluation");
    model.train(training);
    Plain plain(model);
    model.zero_grad();
    at::globalContext().setUserEnabledMkldnn(false);
    const at::Tensor expected = plain.forward(images);
    expected.square().sum().backward();
    at::globalContext().setUserEnabledMkldnn(true);
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& p : model.parameters()) gradients.push_back(p.grad().clone());
    model.zero_grad();
    const at::Tensor logits = model.forward(images);
    logits.square().sum().backward();
    EXPECT_TRUE(at::allclose(logits, expected, 1e-4, 1e-5));
    const auto parameters = model.named_parameters().pairs();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const double size = gradients[i].abs().max().item<double>();
      EXPECT_TRUE(at::allclose(parameters[i].second.grad(), gradients[i], 0, 1e-3 * size + 1e-5))
          << parameters[i].first;
    }
  }
}

// Also with few channels, for which the shortcuts are matrix products.
TEST(ResNet8, ChannelsLastComputesWhatThePlainLayoutDoes) {
  for (const int width : {4, 8, 16}) expect_the_plain_network(*seeded({.width = width}));
}

TEST(ResNet8, NarrowTypesKeepNormalisationAndLogitsInFloat) {
  const auto wide = seeded({.width = 8});
  for (const auto type : {at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(at::toString(type));
    const auto narrow = seeded({.width = 8, .type = type});
    const auto expected = wide->named_parameters();
    for (const auto& [name, parameter] : narrow->named_parameters().pairs()) {
      EXPECT_EQ(parameter.scalar_type(), is_norm(name) ? at::kFloat : type) << name;
      // The initial values are those of fp32, rounded.
      EXPECT_TRUE(at::equal(parameter, expected[name].to(parameter.scalar_type()))) << name;
    }
    for (const auto& [name, buffer] : narrow->named_buffers().pairs())
      EXPECT_NE(buffer.scalar_type(), type) << name;
    const c10::AutoGradMode no_gradient(false);
    const at::Tensor images = at::randn({4, 1, 28, 28});
    const at::Tensor logits = narrow->forward(images);
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(logits, wide->forward(images), 0.1, 0.1));
  }
}

// He initialisation: the standard deviation is sqrt(2 / (outputs * size^2)).
TEST(ResNet8, InitialWeightsHaveTheirDeviation) {
  for (const auto& [name, parameter] : seeded({.width = 32})->named_parameters().pairs()) {
    if (parameter.dim() != 4 || parameter.numel() < 1000) continue;
    const auto fan_out = static_cast<double>(parameter.size(0) * parameter.size(2) * parameter.size(3));
    const double deviation = std::sqrt(2 / fan_out), n = static_cast<double>(parameter.numel());
    EXPECT_NEAR(parameter.std().item<double>(), deviation, 5 * deviation / std::sqrt(2 * n)) << name;
    EXPECT_NEAR(parameter.mean().item<double>(), 0, 5 * deviation / std::sqrt(n)) << name;
  }
}

TEST(ResNet8, EveryParameterGetsAGradient) {
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const auto model = seeded({.width = 8, .type = type});
    model->forward(at::randn({4, 1, 28, 28})).square().sum().backward();
    for (const auto& [name, parameter] : model->named_parameters().pairs()) {
      ASSERT_TRUE(parameter.grad().defined()) << name;
      EXPECT_TRUE(at::isfinite(parameter.grad()).all().item<bool>()) << name;
      EXPECT_GT(parameter.grad().abs().max().item<double>(), 0) << name;
    }
  }
}

}  // namespace
}  // namespace starling
