#include "starling/optim/schemes/vectors.h"

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace starling {
namespace {

// The vector as a block to be mixed.
Block block_of(const Block& block, const at::Tensor& vector) {
  Block v{.length = block.length};
  v.segments.push_back({.parameter = vector, .length = block.length});
  return v;
}

SentBlock as_sent(const float* values, std::int64_t n) {
  return {{nullptr, std::as_bytes(std::span(values, static_cast<std::size_t>(n)))}, Wire::fp32};
}

// f(values of the segment, the segment)
void each_segment(Block& block, const at::Tensor& values,
                  const std::function<void(const at::Tensor&, const Segment&)>& f) {
  const c10::AutoGradMode no_gradient(false);
  with_masters({&block, 1});
  for (const Segment& s : block.segments) f(values.narrow(0, s.offset, s.length), s);
}

// The segment's values in the precision that they are kept in.
at::Tensor kept(const Segment& s) {
  return s.master.defined() ? s.master : stretch(s.parameter, s.begin, s.length);
}

// In a wire block, or one that is to be written.
template <class WireBlock>
std::size_t bytes_of_vector(const WireBlock& all, const Block& block) {
  return bytes_of(all.wire, all.mask.chosen_of(static_cast<std::size_t>(block.length)));
}

}  // namespace

void read_parameters(Block& block, const at::Tensor& values) {
  each_segment(block, values, [](const at::Tensor& v, const Segment& s) { v.copy_(kept(s)); });
}

void set_parameters(Block& block, const at::Tensor& values) {
  each_segment(block, values, [](const at::Tensor& v, const Segment& s) {
    if (s.master.defined()) s.master.copy_(v);
    stretch(s.parameter, s.begin, s.length).copy_(v);
  });
}

std::vector<at::Tensor> chosen(const at::Tensor& values, const Mask& mask) {
  constexpr auto kRun = static_cast<std::int64_t>(Mask::kRun);
  if (mask.one_in == 1) return {values};
  const std::int64_t n = values.numel(), periods = n / (kRun * mask.one_in);
  const std::int64_t whole = periods * kRun * mask.one_in, rest = whole + kRun * mask.turn;
  std::vector<at::Tensor> views{
      values.narrow(0, 0, whole).view({periods, mask.one_in, kRun}).select(1, mask.turn)};
  if (rest < n) views.push_back(values.narrow(0, rest, std::min(kRun, n - rest)));
  return views;
}

void Vectors::attach(std::span<Block> blocks) {
  for (std::size_t b = values_.size(); b < blocks.size(); ++b) {
    values_.push_back(at::zeros({blocks[b].length}, at::TensorOptions(at::kFloat).device(blocks[b].device)));
    zeros_.resize(std::max(zeros_.size(), static_cast<std::size_t>(blocks[b].length)));
    if (fresh_ == Fresh::parameter) copy(blocks[b]);
  }
}

void Vectors::zero() {
  for (const at::Tensor& v : values_) v.zero_();
}

void Vectors::state(StateVisitor& visitor, const std::string& name) {
  visitor.values(name, fresh_, [this](Block& block, const auto& f) { f(of(block)); });
}

const at::Tensor& Vectors::less_parameters(const Block& block) const {
  const c10::AutoGradMode no_gradient(false);
  for (const Segment& s : block.segments) {
    of(block).narrow(0, s.offset, s.length).sub_(kept(s));
  }
  return of(block);
}

void Vectors::mix(const Block& block, std::span<const Arrival> arrived) const {
  Block v = block_of(block, of(block));
  starling::mix(v, arrived, {});
}

void Vectors::mix_sent(Block& block, std::span<const Arrival> arrived) const {
  Block v = block_of(block, of(block));
  v.grid = block.grid;
  starling::mix(v, arrived, {});
  block.grid = v.grid;
}

bool Vectors::write(const Block& block, const Outgoing& outgoing) const {
  Block v = block_of(block, of(block));
  return starling::mix(v, {}, outgoing);
}

bool Vectors::write_again(const Block& block, const Outgoing& outgoing) const {
  Block v = block_of(block, of(block));
  v.grid = block.grid;
  return starling::write_again(v, outgoing);
}

Arrival Vectors::plus(const Block& block, float weight) const {
  return {.weight = weight,
          .theirs = as_sent(of(block).const_data_ptr<float>(), block.length),
          .mine = as_sent(zeros_.data(), block.length)};
}

SentBlock second_vector(const SentBlock& all, const Block& block) {
  SentBlock second = all;
  second.block.bytes = all.bytes().subspan(bytes_of_vector(all, block));
  return second;
}

Outgoing second_vector(const Outgoing& all, const Block& block) {
  Outgoing second = all;
  second.values = static_cast<std::byte*>(all.values) + bytes_of_vector(all, block);
  return second;
}

}  // namespace starling
