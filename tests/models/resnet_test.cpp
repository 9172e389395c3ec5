#include "starling/models/resnet.h"

#include <cmath>
#include <string>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/conv.h>

#include "tests/refusal.h"

namespace starling {
namespace {

// tests/train/tasks/twins_test.py compares outputs and steps with torchvision's.

std::shared_ptr<Classifier> drawn(const ResNetOptions& options) {
  torch::manual_seed(3);
  return make_resnet(options);
}

bool is_batch_norm(const std::string& name) {
  return name.find("bn") != std::string::npos || name.find("downsample.1") != std::string::npos;
}

// The numbers that torchvision's documentation names.
TEST(ResNet, CountsItsParameters) {
  for (const auto& [depth, expected] : std::vector<std::pair<int, std::int64_t>>{
           {18, 11'689'512}, {34, 21'797'672}, {50, 25'557'032}, {101, 44'549'160}}) {
    std::int64_t counted = 0;
    for (const at::Tensor& p : make_resnet({.depth = depth})->parameters()) counted += p.numel();
    EXPECT_EQ(counted, expected) << depth;
  }
  EXPECT_EQ(refusal<UsageError>([] { make_resnet({.depth = 20}); }), "depth = 20: wants 18, 34, 50 or 101");
}

TEST(ResNet, MapsImagesToLogits) {
  const c10::AutoGradMode no_gradient(false);
  EXPECT_EQ(drawn({.depth = 18})->forward(at::randn({2, 3, 64, 96})).sizes(),
            (std::vector<std::int64_t>{2, 1000}));
  EXPECT_EQ(
      drawn({.depth = 50, .classes = 7, .small_images = true})->forward(at::randn({2, 3, 32, 32})).sizes(),
      (std::vector<std::int64_t>{2, 7}));
}

TEST(ResNet, TheStrideOfABottleneckIsInIts3x3) {
  const auto model = drawn({.depth = 50});
  const auto weights = model->named_parameters();
  EXPECT_EQ(weights["layer2.0.conv2.weight"].sizes(), (std::vector<std::int64_t>{128, 128, 3, 3}));
  const auto stride = [&](const std::string& name) {
    return (*model->named_modules()[name]->as<torch::nn::Conv2d>()->options.stride())[0];
  };
  EXPECT_EQ(stride("layer2.0.conv1"), 1);
  EXPECT_EQ(stride("layer2.0.conv2"), 2);
}

// With its last normalisation at 0, a block without a convolution in its shortcut is the identity.
TEST(ResNet, BlocksBeginAsTheIdentity) {
  for (const bool zero_init : {true, false}) {
    for (const int depth : {18, 50}) {
      const std::string last = depth == 18 ? "bn2.weight" : "bn3.weight";
      int zeros = 0, others = 0;
      for (const auto& [name, p] :
           drawn({.depth = depth, .zero_init = zero_init})->named_parameters().pairs()) {
        if (!is_batch_norm(name) || !name.ends_with("weight")) continue;
        const bool zero = p.abs().max().item<double>() == 0;
        EXPECT_EQ(zero, zero_init && name.ends_with(last)) << name;
        ++(zero ? zeros : others);
      }
      EXPECT_EQ(zeros, zero_init ? (depth == 18 ? 8 : 16) : 0);
      EXPECT_GT(others, 10);
    }
  }
}

TEST(ResNet, WeightsAreChannelsLastOfTheTypeAndOfTheirDeviation) {
  const auto wide = drawn({.depth = 18});
  const auto expected = wide->named_parameters();
  const auto narrow = drawn({.depth = 18, .type = at::kBFloat16});
  for (const auto& [name, p] : narrow->named_parameters().pairs()) {
    EXPECT_EQ(p.scalar_type(), is_batch_norm(name) ? at::kFloat : at::kBFloat16) << name;
    EXPECT_TRUE(at::equal(p, expected[name].to(p.scalar_type()))) << name;
    if (p.dim() != 4) continue;
    EXPECT_TRUE(p.is_contiguous(at::MemoryFormat::ChannelsLast)) << name;
    const double deviation = std::sqrt(2.0 / static_cast<double>(p.size(0) * p.size(2) * p.size(3)));
    const double error = 5 * deviation / std::sqrt(2.0 * static_cast<double>(p.numel()));
    EXPECT_NEAR(expected[name].std().item<double>(), deviation, error) << name;
  }
  const c10::AutoGradMode no_gradient(false);
  const at::Tensor images = at::randn({2, 3, 64, 64}), logits = narrow->forward(images);
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_TRUE(at::allclose(logits, wide->forward(images), 0.1, 0.1));
}

TEST(ResNet, EveryParameterGetsAGradient) {
  for (const int depth : {18, 50}) {
    const auto model = drawn({.depth = depth, .classes = 5, .zero_init = false});
    model->forward(at::randn({4, 3, 40, 40})).square().sum().backward();
    for (const auto& [name, p] : model->named_parameters().pairs()) {
      ASSERT_TRUE(p.grad().defined()) << name;
      EXPECT_GT(p.grad().abs().max().item<double>(), 0) << name;
    }
  }
}

}  // namespace
}  // namespace starling
