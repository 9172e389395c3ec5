// Blocks: the same bits for any number of torch's threads.
#include "starling/optim/blocks.h"

#include <functional>
#include <map>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>
#include <torch/optim/optimizer.h>

#include "starling/optim/pass.h"

namespace starling {
namespace {

using at::Tensor;

// Large and tiny parameters, one without a gradient, and a gradient of other strides. Segments
// begin anywhere in a block.
std::vector<Tensor> parameters() {
  at::manual_seed(3);
  std::vector<Tensor> all;
  for (const int n : {3, 400'001, 17, 1, 70'000, 900'000, 5})
    all.push_back(at::randn({n}).set_requires_grad(true));
  all.push_back(at::randn({300, 200}).t().set_requires_grad(true));
  for (Tensor& p : all) p.mutable_grad() = at::randn(p.sizes());
  all[2].mutable_grad().reset();
  return all;
}

struct After {
  std::vector<Tensor> parameters;
  std::vector<std::vector<float>> states, sent;
  double squares = 0;
};

std::shared_ptr<Buffer> filled(std::size_t length, float value) {
  auto buffer = std::make_shared<Buffer>(length * sizeof(float));
  std::ranges::fill(floats_of(*buffer), value);
  return buffer;
}

After step(int threads) {
  at::set_num_threads(threads);
  After after{parameters(), {}, {}, 0};
  std::vector<torch::optim::OptimizerParamGroup> groups{torch::optim::OptimizerParamGroup(after.parameters)};
  std::vector<Block> blocks;
  append_blocks(blocks, groups, 0, 4 << 20);
  EXPECT_GT(blocks.size(), 1U);
  after.squares = sum_of_squares(blocks);
  for (Block& block : blocks) {
    block.keep(2);
    const auto length = static_cast<std::size_t>(block.length);
    std::vector<Arrival> arrived;
    for (int rank = 0; rank < 5; ++rank) {
      arrived.push_back({rank,
                         0.1f,
                         {payload_of(filled(length, 0.3f * static_cast<float>(rank))), Wire::fp32},
                         {payload_of(filled(length, 0.1f)), Wire::fp32}});
    }
    std::vector<float> outgoing(length);
    EXPECT_TRUE(update(block, AdamW{.lr = 0.1}, arrived, outgoing.data(), 0.5f));
    for (const Tensor& state : block.states) {
      const float* const values = state.const_data_ptr<float>();
      after.states.emplace_back(values, values + state.numel());
    }
    after.sent.push_back(outgoing);
  }
  return after;
}

// Two steps with modular codes or masks. The second one mixes the block that the first one sent.
// Returns the blocks as sent, and the grids.
std::vector<std::vector<std::byte>> two_steps(Wire wire, int threads, Mask mask = {}) {
  at::set_num_threads(threads);
  std::vector<Tensor> all = parameters();
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, 0, 4 << 20, wire);
  std::vector<std::vector<std::byte>> sent_blocks;
  for (Block& block : blocks) {
    block.keep(2);
    const auto length = static_cast<std::size_t>(block.length);
    const Mask later{mask.one_in, (mask.turn + 1) % mask.one_in};
    const std::size_t bytes = block_bytes(wire, mask.chosen_of(length));
    const auto mine = std::make_shared<Buffer>(bytes), theirs = std::make_shared<Buffer>(bytes);
    Buffer next(block_bytes(wire, later.chosen_of(length)));
    EXPECT_TRUE(update(block, AdamW{.lr = 0.1}, {}, Outgoing{{theirs->data(), wire}, mask}));
    EXPECT_TRUE(update(block, AdamW{.lr = 1e-5}, {}, Outgoing{{mine->data(), wire}, mask}));
    const Arrival arrival{1, 0.5F, {payload_of(theirs), wire, mask}, {payload_of(mine), wire, mask}};
    EXPECT_TRUE(update(block, AdamW{.lr = 0.1}, {&arrival, 1}, Outgoing{{next.data(), wire}, later}));
    EXPECT_TRUE(write_again(block, Outgoing{{next.data(), wire}, later}));
    for (const Buffer* sent : {mine.get(), theirs.get(), &next})
      sent_blocks.emplace_back(sent->begin(), sent->end());
    for (const int exponent : block.grid.state()) sent_blocks.push_back({static_cast<std::byte>(exponent)});
  }
  for (const Tensor& p : all) {
    const Tensor dense = p.contiguous();
    const auto* const bytes = static_cast<const std::byte*>(dense.const_data_ptr());
    sent_blocks.emplace_back(bytes, bytes + p.nbytes());
  }
  return sent_blocks;
}

// Sends a parameter of several blocks, applies `change`, and mixes it with a neighbour's. With
// `damaged`, the values that were sent are overwritten before.
Tensor mixed(const std::function<void(Tensor&)>& change, bool damaged) {
  Tensor p = at::full({200'000}, 1.0).set_requires_grad(true);
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(std::vector<Tensor>{p})}, 0, 256 << 10);
  EXPECT_GT(blocks.size(), 2U);
  const c10::AutoGradMode no_gradient(false);
  p.mutable_grad() = at::full({200'000}, 1.0);
  std::vector<std::shared_ptr<Buffer>> sent;
  for (const Block& block : blocks) sent.push_back(filled(static_cast<std::size_t>(block.length), 0));
  for (int step = 0; step < 2; ++step) {  // passes over other blocks come in between
    for (Block& block : blocks)
      EXPECT_TRUE(
          update(block, SGD{.lr = 1}, {}, floats_of(*sent[static_cast<std::size_t>(block.index)]).data()));
  }
  change(p);
  for (Block& block : blocks) {
    const auto length = static_cast<std::size_t>(block.length);
    auto& mine = sent[static_cast<std::size_t>(block.index)];
    EXPECT_EQ(floats_of(*mine).front(), -1);
    if (damaged) std::ranges::fill(floats_of(*mine), 7.0F);
    const Arrival arrival{
        1, 0.5F, {payload_of(filled(length, 3)), Wire::fp32}, {payload_of(mine), Wire::fp32}};
    EXPECT_TRUE(mix(block, {&arrival, 1}, {}));
  }
  return p.detach();
}

TEST(Blocks, ReadsSentValuesOnlyIfTheParametersHaveChanged) {
  const auto all = [](const Tensor& p, double value) { return at::equal(p, at::full({200'000}, value)); };
  const auto nothing = [](Tensor&) {};
  EXPECT_TRUE(all(mixed(nothing, false), 1));
  EXPECT_TRUE(all(mixed(nothing, true), 1)) << "what was sent has been read";
  // No part of a change is lost, however close to the neighbour it brings the parameters.
  EXPECT_TRUE(all(mixed([](Tensor& p) { p.add_(4); }, false), 5));
  EXPECT_TRUE(all(mixed([](Tensor& p) { p.set_data(p.detach() + 4); }, false), 5));
  EXPECT_TRUE(all(
      mixed([](Tensor& p) { p.narrow(0, 0, 199'999).add_(4), p.narrow(0, 199'999, 1).add_(4); }, false), 5));
}

TEST(Blocks, ModularCodesAreTheSameForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const Wire wire : {Wire::int8, Wire::int4}) {
    const auto one = two_steps(wire, 1);
    for (const int threads : {2, 3, 7})
      EXPECT_TRUE(one == two_steps(wire, threads)) << name_of(wire) << threads;
  }
  at::set_num_threads(before);
}

// Segments, the shares of threads, and masks begin and end anywhere.
TEST(Blocks, MasksAreTheSameForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::int8, Wire::int4}) {
    for (const Mask mask : {Mask{2, 0}, Mask{5, 4}}) {
      const auto one = two_steps(wire, 1, mask);
      for (const int threads : {2, 3, 7})
        EXPECT_TRUE(one == two_steps(wire, threads, mask)) << name_of(wire) << mask.one_in << threads;
    }
  }
  at::set_num_threads(before);
}

TEST(Blocks, NoTwoSegmentsShareAByteOfInt4) {
  std::vector<Tensor> all = parameters();
  std::vector<Block> blocks;
  append_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, 0, 4 << 20, Wire::int4);
  std::int64_t values = 0, expected = 0;
  for (const Block& block : blocks) {
    std::int64_t end = 0;
    for (const Segment& segment : block.segments) {
      EXPECT_EQ(segment.offset % 2, 0);
      EXPECT_GE(segment.offset, end);
      end = segment.offset + segment.length;
      values += segment.length;
    }
    EXPECT_LE(end, block.length);
    EXPECT_LE(block.length, 1 << 20);
  }
  for (const Tensor& p : all) expected += p.numel();
  EXPECT_EQ(values, expected);
}

TEST(Blocks, UndividedAMatrixLiesInOneBlockWhateverItsSize) {
  const Tensor matrix = at::zeros({300, 400}), vector = at::zeros({120'000});
  for (const bool undivided : {false, true}) {
    std::vector<Block> blocks;
    const std::vector<Tensor> all{at::zeros({10}), matrix, vector};
    append_blocks(blocks, {torch::optim::OptimizerParamGroup(all)}, 0, 1, Wire::fp32, undivided);
    std::map<const void*, int> segments;
    for (const Block& block : blocks) {
      for (const Segment& segment : block.segments) ++segments[segment.parameter.unsafeGetTensorImpl()];
    }
    EXPECT_EQ(segments[matrix.unsafeGetTensorImpl()] == 1, undivided);
    EXPECT_GT(segments[vector.unsafeGetTensorImpl()], 1);
  }
}

// Compares the conversions of 16-bit wires with torch's, except for NaN, whose bits differ by
// machine.
TEST(Blocks, WiresRoundAsTorchDoes) {
  const Tensor x = at::cat({at::randn({100'000}) * at::randn({100'000}).mul(8).exp2(), at::full({1}, 1e30),
                            at::full({1}, -1e-30)});
  const float* const values = x.const_data_ptr<float>();
  const Tensor bf16 = x.to(at::kBFloat16).view(at::kShort), fp16 = x.to(at::kHalf).view(at::kShort);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    ASSERT_EQ(kernels::to_bf16(values[i]), static_cast<std::uint16_t>(bf16.const_data_ptr<std::int16_t>()[i]))
        << values[i];
    ASSERT_EQ(kernels::to_fp16(values[i]), static_cast<std::uint16_t>(fp16.const_data_ptr<std::int16_t>()[i]))
        << values[i];
  }
}

TEST(Blocks, TheSameBitsForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const After one = step(1);
  double squares = 0;
  for (const Tensor& p : parameters()) {
    if (p.grad().defined()) squares += p.grad().to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(one.squares, squares, 1e-12 * squares);
  for (const int threads : {2, 3, 7}) {
    const After many = step(threads);
    EXPECT_EQ(one.squares, many.squares);
    EXPECT_EQ(one.states, many.states);
    EXPECT_EQ(one.sent, many.sent);
    for (std::size_t i = 0; i < one.parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(one.parameters[i], many.parameters[i])) << threads << " threads, parameter " << i;
    }
  }
  at::set_num_threads(before);
  // The step mixed every parameter, and updated those with a gradient.
  const auto was = parameters();
  EXPECT_NEAR((one.parameters[2] - was[2]).min().item<double>(), 0.1 * (0.3 * (1 + 2 + 3 + 4) - 5 * 0.1),
              1e-5);
  for (std::size_t i = 0; i < was.size(); ++i) EXPECT_FALSE(at::equal(one.parameters[i], was[i])) << i;
}

}  // namespace
}  // namespace starling
