// Blocks on a GPU: to the bit what the processor makes of them, through streams, copies and the device's thread. The GPU is the one
// of tests/kernels/cuda/other_driver.cpp, whose memory is the host's and which is as lazy as it may be. Workers are threads.
#include "starling/optim/device.h"

#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include "starling/optim/blocks.h"
#include "starling/optim/clipping.h"
#include "starling/optim/optimizer.h"
#include "starling/optim/options.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/around.h"
#include "starling/optim/schemes/atc.h"
#include "starling/optim/schemes/cta.h"
#include "starling/topology/schedules.h"
#include "starling/transport/transport.h"
#include "tests/checkpoint/folder.h"
#include "tests/kernels/cuda/other_nvrtc.h"
#include "tests/optim/flock.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using at::Tensor;

constexpr int kSteps = 5;

struct Case {
  std::string name;
  Rule rule = AdamW{.lr = 0.05};
  Wire wire = Wire::fp32;
  at::ScalarType type = at::kFloat;
  std::string scheme = "cta";
  std::string topology = "ring";
  int one_in = 1;
  double clip = 20;
};
void PrintTo(const Case& the, std::ostream* out) { *out << the.name; }

// What a worker ends with: parameters, masters and the rule's state, as bytes.
using After = std::vector<std::vector<std::byte>>;

std::vector<std::byte> bytes_in(const Tensor& tensor) {
  const Tensor here = tensor.cpu();
  const auto* const bytes = static_cast<const std::byte*>(here.const_data_ptr());
  return {bytes, bytes + here.nbytes()};
}

class OnAnotherDevice : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    setenv("XDG_CACHE_HOME", (cache_ / "").c_str(), 1);
    setenv("STARLING_NVRTC", kernels::cuda::other_nvrtc().c_str(), 1);
    library_ = dlopen(kernels::cuda::other_driver().c_str(), RTLD_NOW);
    ASSERT_NE(library_, nullptr) << dlerror();
  }
  void TearDown() override {
    unsetenv("XDG_CACHE_HOME");
    unsetenv("STARLING_NVRTC");
  }
  std::shared_ptr<Device> device() {
    return std::make_shared<Device>(std::make_unique<kernels::cuda::Gpu>(0, kernels::cuda::other_driver()),
                                    at::TensorOptions(at::kByte), at::TensorOptions(at::kByte),
                                    [] { return nullptr; });
  }
  // The default stream is as empty as whatever torch puts into it next would find it.
  void drain() { reinterpret_cast<void (*)()>(dlsym(library_, "other_driver_drain"))(); }
  void fail(bool now) { reinterpret_cast<void (*)(bool)>(dlsym(library_, "other_driver_fail"))(now); }

  // On the CPU, there but with this test's GPU, or on a real one.
  enum class Where { here, other, cuda };
  After train(const Case& the, int me, World& world, Where where);
  void expect_the_same(Where where);

 private:
  Folder cache_;
  void* library_ = nullptr;
};

// More than one block; sizes of no alignment; one parameter has no gradient in some steps.
After OnAnotherDevice::train(const Case& the, int me, World& world, Where where) {
  const bool on_device = where == Where::other;
  const at::Device place(where == Where::cuda ? at::kCUDA : at::kCPU, where == Where::cuda ? 0 : -1);
  std::vector<Tensor> all;
  {
    const c10::AutoGradMode no_gradient(false);
    for (const int n : {3, 5000, 17, 66'000, 4097})
      all.push_back((at::arange(n, at::kFloat) + 100.0 * me).sin().to(the.type).to(place));
  }
  for (Tensor& p : all) p.set_requires_grad(true);
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, 0, 1, the.wire);
  EXPECT_GE(blocks.size(), 2u);
  const auto gpu = on_device ? device() : nullptr;
  const Schedule schedule = make_schedule(the.topology, world.size);
  std::vector<std::size_t> sizes;
  for (Block& block : blocks) {
    block.keep(rule_states(the.rule));
    block.grid.remember(schedule.rounds.size() * static_cast<std::size_t>(the.one_in));
    if (on_device) block.on_device = std::make_shared<OnDevice>(gpu);
    sizes.push_back(static_cast<std::size_t>(block.length));
  }
  Exchange exchange(world.make_transport(world, "device"), schedule, sizes, Patience{}, world.log, nullptr,
                    the.wire, the.one_in);
  exchange.meet();
  Clipping clipping(the.clip, /*skip=*/false, std::nullopt);
  const auto rule = [&](int) -> const Rule& { return the.rule; };
  std::unique_ptr<Scheme> scheme;
  if (the.scheme == "cta") scheme = std::make_unique<Cta>(blocks, exchange, rule, clipping);
  if (the.scheme == "atc") scheme = std::make_unique<Atc>(blocks, exchange, rule, clipping);
  if (the.scheme == "around") {
    scheme = std::make_unique<Around>(Around::Order::combine_then_adapt, blocks, exchange, [&] {
      drain();
      for (Tensor& p : all) {
        if (p.grad().defined()) p.sub_(p.grad(), 0.1);
      }
    });
  }
  const c10::AutoGradMode no_gradient(false);
  scheme->begin();
  for (int t = 0; t < kSteps; ++t) {
    for (std::size_t k = 0; k < all.size(); ++k) {
      Tensor& g = all[k].mutable_grad();
      if (g.defined()) g.zero_();  // as zero_grad() would, which the update must not see
      if (k == 2 && t % 2 == 1) {
        g.reset();
      } else {
        g = all[k] - centre(me, t);
      }
    }
    settle(blocks);
    scheme->step();
    drain();
  }
  settle(blocks);
  with_masters(blocks);
  settle(blocks);
  After after;
  for (const Tensor& p : all) after.push_back(bytes_in(p));
  for (const Block& block : blocks) {
    for (const Segment& s : block.segments) {
      if (s.master.defined()) after.push_back(bytes_in(s.master));
    }
    for (const Tensor& state : block.states) after.push_back(bytes_in(state));
    const std::vector<int> grid = block.grid.state();
    const auto exponents = std::as_bytes(std::span(grid));
    after.emplace_back(exponents.begin(), exponents.end());
  }
  return after;
}

void OnAnotherDevice::expect_the_same(Where where) {
  Case the = GetParam();
  if (where == Where::cuda) the.clip = 0;  // its sums of squares have other last bits
  std::vector<After> there(kWorkers), here(kWorkers);
  flock(kWorkers,
        [&](int i, World& world) { there[static_cast<std::size_t>(i)] = train(the, i, world, where); });
  flock(kWorkers,
        [&](int i, World& world) { here[static_cast<std::size_t>(i)] = train(the, i, world, Where::here); });
  for (std::size_t i = 0; i < there.size(); ++i) {
    ASSERT_EQ(there[i].size(), here[i].size());
    for (std::size_t k = 0; k < here[i].size(); ++k)
      EXPECT_TRUE(there[i][k] == here[i][k]) << "worker " << i << ", tensor " << k;
  }
  EXPECT_FALSE(here[0] == here[1]);
}

TEST_P(OnAnotherDevice, WorkersTrainAsOnTheProcessorToTheBit) { expect_the_same(Where::other); }

// All workers share the card.
TEST_P(OnAnotherDevice, WorkersTrainOnAGpuAsOnTheProcessorToTheBit) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  if (GetParam().scheme == "around") GTEST_SKIP() << "torch's own step rounds otherwise on a GPU";
  TearDown();  // the real compiler, once for all
  expect_the_same(Where::cuda);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, OnAnotherDevice,
    testing::Values(
        Case{.name = "fp32"}, Case{.name = "bf16_wire", .wire = Wire::bf16},
        Case{.name = "fp16_wire", .wire = Wire::fp16}, Case{.name = "int8_wire", .wire = Wire::int8},
        Case{.name = "int4_wire", .wire = Wire::int4},
        Case{.name = "bf16_parameters", .rule = AdamW{.lr = 0.05}, .type = at::kBFloat16},
        Case{.name = "fp16_parameters", .rule = Adam{.lr = 0.05}, .wire = Wire::bf16, .type = at::kHalf},
        Case{.name = "sgd", .rule = SGD{.lr = 0.1}},
        Case{.name = "momentum", .rule = SGD{.lr = 0.1, .momentum = 0.9}, .topology = "base-2"},
        Case{.name = "accumulated", .rule = AccumAdamW{.lr = 0.05, .window = 2}},
        Case{.name = "accumulated_with_decay",
             .rule = AccumAdam{.lr = 0.05, .weight_decay = 0.1, .window = 2},
             .type = at::kBFloat16},
        Case{.name = "mean_of_a_group", .wire = Wire::bf16, .topology = "complete"},
        Case{.name = "random_k", .one_in = 4}, Case{.name = "random_k_int8", .wire = Wire::int8, .one_in = 3},
        Case{.name = "atc", .scheme = "atc"}, Case{.name = "atc_int8", .wire = Wire::int8, .scheme = "atc"},
        Case{.name = "around", .scheme = "around"},
        Case{.name = "around_int4", .wire = Wire::int4, .scheme = "around"}),
    [](const auto& info) { return info.param.name; });

using ADeviceThatFails = OnAnotherDevice;

TEST_F(ADeviceThatFails, SaysSoToWhoWaits) {
  Tensor p = at::randn({100}).set_requires_grad(true);
  p.mutable_grad() = at::randn({100});
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup({p})}, 0, 1);
  blocks[0].on_device = std::make_shared<OnDevice>(device());
  std::vector<float> wire(100);
  fail(true);
  const std::string failure = "CUDA: the GPU's work: error 719, unspecified launch failure";
  EXPECT_EQ(refusal([&] { update(blocks[0], SGD{}, {}, wire.data()); }), failure);
  EXPECT_EQ(refusal([&] { settle(blocks); }), failure);
  fail(false);
  EXPECT_EQ(refusal([&] { update(blocks[0], SGD{}, {}, wire.data()); }), failure);  // it does not come back
  drain();  // what was given to it still runs: it must not lose its memory before
}

// Infinity in one parameter: its block is not sent, and the others go on without it.
TEST_F(ADeviceThatFails, OrANumberThatIsNotFiniteIsSeen) {
  for (const bool bad : {false, true}) {
    Tensor p = at::randn({5000}).set_requires_grad(true);
    p.mutable_grad() = at::zeros({5000});
    if (bad) p.mutable_grad()[4999] = INFINITY;
    std::vector<Block> blocks;
    append_blocks(blocks, {torch::optim::OptimizerParamGroup({p})}, 0, 1);
    blocks[0].on_device = std::make_shared<OnDevice>(device());
    std::vector<float> wire(5000);
    EXPECT_EQ(update(blocks[0], SGD{}, {}, wire.data()), !bad);
  }
}

TEST(OnNoDevice, ParametersMustStayWhereTheyAre) {
  std::vector<Tensor> all{at::randn({10}).set_requires_grad(true)};
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, 0, 1);
  blocks[0].segments[0].parameter = at::empty({10}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(refusal<UsageError>([&] { mix(blocks[0], {}, {}); }),
            "a parameter [10] was on cpu when the optimizer was made and is on meta now: it must stay there");
}

// 50 steps of a small model with all that an optimizer is asked for: clipping, a narrow layer, accumulation, the average model, its
// state taken out and put back half-way, and another optimizer around which it mixes.
std::vector<Tensor> fifty_steps(int me, World& world, at::Device place, const std::string& scheme) {
  const bool around = scheme == "around";
  torch::nn::Sequential model(torch::nn::Linear(20, 50), torch::nn::Tanh(), torch::nn::Linear(50, 3));
  {
    const c10::AutoGradMode no_gradient(false);
    for (Tensor& p : model->parameters())
      p.copy_(at::arange(p.numel(), at::kFloat).sin().mul_(0.3).view_as(p));
  }
  model->to(place);
  std::unique_ptr<torch::optim::AdamW> inner;
  std::unique_ptr<Optimizer> optimizer;
  if (around) {
    inner = std::make_unique<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(0.01));
    optimizer = std::make_unique<Optimizer>(*model, *inner, Options{.wire = Wire::bf16}, world);
  } else {
    optimizer = std::make_unique<Optimizer>(
        *model, AdamW{.lr = 0.01}, Options{.scheme = scheme, .clip = 1, .skip_not_finite = true}, world);
  }
  std::vector<Tensor> after;
  const Tensor x = (at::arange(64 * 20, at::kFloat).reshape({64, 20}) * (me + 1)).sin().to(place);
  for (int t = 0; t < 50; ++t) {
    optimizer->zero_grad();
    const Tensor y = x.slice(1, t % 17, t % 17 + 3);
    (model->forward(x) - y).square().mean().backward();
    if (t == 20 && !around) model->parameters()[0].mutable_grad().fill_(INFINITY);  // skipped
    optimizer->step();
    if (t == 25) {
      const OptimizerState state = optimizer->state();
      OptimizerState copy{state.metadata, {}};
      for (const auto& [name, tensor] : state.tensors) copy.tensors.emplace(name, tensor.clone());
      optimizer->step();
      optimizer->set_state(copy);
    }
  }
  if (!around) {
    EXPECT_EQ(optimizer->statistics().skipped, 1U);
  }
  after.push_back(at::full({1}, optimizer->consensus_distance(), at::kFloat));
  {
    const Consensus average(*optimizer);
    for (const Tensor& p : model->parameters()) after.push_back(p.detach().cpu().clone());
  }
  for (const Tensor& p : model->parameters()) after.push_back(p.detach().cpu().clone());
  return after;
}

TEST(OnAGpu, FiftyStepsAreThoseOfTheProcessor) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  for (const std::string scheme : {"cta", "atc", "all-reduce", "around"}) {
    std::vector<std::vector<Tensor>> there(2), here(2);
    flock(2, [&](int i, World& world) {
      there[static_cast<std::size_t>(i)] = fifty_steps(i, world, at::Device(at::kCUDA, 0), scheme);
    });
    flock(2, [&](int i, World& world) {
      here[static_cast<std::size_t>(i)] = fifty_steps(i, world, at::kCPU, scheme);
    });
    for (std::size_t i = 0; i < 2; ++i) {
      for (std::size_t k = 0; k < here[i].size(); ++k)
        EXPECT_TRUE(at::allclose(there[i][k], here[i][k], 1e-3, 1e-3)) << "worker " << i << ", tensor " << k;
    }
  }
}

// The same on the CPU, so that the test itself is run where there is no GPU: workers agree, and the average is one.
TEST(OnAGpu, FiftyStepsOnTheProcessorAreTheSameTwice) {
  for (const std::string scheme : {"cta", "atc", "all-reduce", "around"}) {
    std::vector<std::vector<Tensor>> once(2), again(2);
    for (auto* const all : {&once, &again}) {
      flock(2, [&](int i, World& world) {
        (*all)[static_cast<std::size_t>(i)] = fifty_steps(i, world, at::kCPU, scheme);
      });
    }
    for (std::size_t k = 0; k < once[0].size(); ++k) EXPECT_TRUE(at::equal(once[0][k], again[0][k]));
    for (std::size_t k = 1; k < 5; ++k) EXPECT_TRUE(at::allclose(once[0][k], once[1][k], 1e-5, 1e-6));
  }
}

TEST(OnNoDevice, SomeSchemesMustStay) {
  EXPECT_EQ(needs_cpu({}), "");
  EXPECT_EQ(needs_cpu({.scheme = "atc"}), "");
  EXPECT_EQ(needs_cpu({.scheme = "swarm"}),
            "with scheme \"swarm\" it must be on the CPU: on CUDA devices there are cta, atc and all-reduce");
  EXPECT_EQ(needs_cpu({.hierarchy = "node"}),
            "with hierarchy \"node\" it must be on the CPU, where a node's gradients are added up");
}

TEST(OnAGpu, WhatItDoesNotDoIsRefused) {
  if (const std::string why = find_cuda(); !why.empty()) GTEST_SKIP() << why;
  World world = World::alone();
  const auto make = [&](const std::string& scheme) {
    const Tensor p = at::zeros({4}, at::TensorOptions(at::kCUDA)).set_requires_grad(true);
    return refusal<UsageError>([&] { Optimizer(std::vector<Tensor>{p}, SGD{}, {.scheme = scheme}, world); });
  };
  EXPECT_EQ(make("choco"), "parameter 0 of group 0 is on cuda:0: " + needs_cpu({.scheme = "choco"}));
}

}  // namespace
}  // namespace starling
