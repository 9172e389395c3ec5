#include "starling/optim/schemes/vectors.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

namespace starling {
namespace {

SentBlock as_sent(const at::Tensor& values, const Block& block) {
  const auto n = static_cast<std::size_t>(block.length);
  SentBlock sent({nullptr, std::as_bytes(std::span(values.const_data_ptr<float>(), n))}, Wire::fp32);
  sent.on_device = block.on_device != nullptr;
  return sent;
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

// The values as they are kept, each segment with its part of `values`.
std::vector<Moved> moved(Block& block, const at::Tensor& values) {
  std::vector<Moved> all;
  each_segment(block, values, [&](const at::Tensor& v, const Segment& s) { all.push_back({kept(s), v}); });
  return all;
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

void read_on_host(Block& block, const at::Tensor& values) { copy_to_host(block, moved(block, values)); }

void set_from_host(Block& block, const at::Tensor& values) {
  const c10::AutoGradMode no_gradient(false);
  copy_from_host(block, moved(block, values));
  for (const Segment& s : block.segments) {
    if (s.master.defined()) stretch(s.parameter, s.begin, s.length).copy_(s.master);
  }
}

void copy_to_host(const Block& block, std::span<const Moved> all) {
  const c10::AutoGradMode no_gradient(false);
  if (!block.on_device) {
    for (const Moved& m : all) m.here.copy_(m.there);
    return;
  }
  std::vector<at::Tensor> floats;  // live until the copies are over
  std::vector<OnDevice::Copy> copies;
  for (const Moved& m : all) {
    floats.push_back(m.there.to(at::kFloat));
    copies.push_back({m.here.mutable_data_ptr(), floats.back().const_data_ptr(), m.here.nbytes()});
  }
  block.on_device->to_host(copies);
}

void copy_from_host(const Block& block, std::span<const Moved> all) {
  const c10::AutoGradMode no_gradient(false);
  if (!block.on_device) {
    for (const Moved& m : all) m.there.copy_(m.here);
    return;
  }
  std::vector<at::Tensor> floats;
  std::vector<OnDevice::Copy> copies;
  for (const Moved& m : all) {
    const bool narrow = m.there.scalar_type() != at::kFloat;
    floats.push_back(narrow ? at::empty_like(m.there, at::kFloat) : m.there);
    copies.push_back({floats.back().mutable_data_ptr(), m.here.const_data_ptr(), m.here.nbytes()});
  }
  block.on_device->from_host(copies);
  for (std::size_t k = 0; k < all.size(); ++k) {
    if (floats[k].is_same(all[k].there)) {
      floats[k].unsafeGetTensorImpl()->bump_version();
    } else {
      all[k].there.copy_(floats[k]);
    }
  }
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

at::Tensor room_on_host(const Block& block) {
  return at::empty({block.length}, at::TensorOptions(at::kFloat).pinned_memory(block.device.is_cuda()));
}

void Zeros::attach(std::span<const Block> blocks) {
  for (const Block& block : blocks) {
    std::int64_t& longest = all_[block.device].longest;
    longest = std::max(longest, block.length);
  }
}

SentBlock Zeros::of(const Block& block) const {
  auto& [longest, values] = all_.at(block.device);
  if (!values.defined() || values.numel() < longest)
    values = at::zeros({longest}, at::TensorOptions(at::kFloat).device(block.device));
  return as_sent(values, block);
}

void Vectors::attach(std::span<Block> blocks) {
  for (std::size_t b = values_.size(); b < blocks.size(); ++b) {
    Block& block = blocks[b];
    const bool here = where_ == Where::host;
    values_.push_back(here ? room_on_host(block).zero_()
                           : at::zeros({block.length}, at::TensorOptions(at::kFloat).device(block.device)));
    passes_.push_back(here || !block.on_device ? nullptr : block.on_device->beside());
    if (fresh_ == Fresh::parameter) copy(block);
  }
  if (where_ == Where::device) zeros_.attach(blocks);
}

void Vectors::zero() {
  for (const at::Tensor& v : values_) v.zero_();
}

void Vectors::state(StateVisitor& visitor, const std::string& name) {
  visitor.values(name, fresh_, [this](Block& block, const auto& f) { f(of(block)); });
}

const at::Tensor& Vectors::less_parameters(const Block& block) const {
  const c10::AutoGradMode no_gradient(false);
  for (const Segment& s : block.segments) of(block).narrow(0, s.offset, s.length).sub_(kept(s));
  return of(block);
}

Vector Vectors::vector(const Block& block, Grid* grid) const {
  return {of(block), passes_[static_cast<std::size_t>(block.index)], grid};
}

void Vectors::mix(const Block& block, std::span<const Arrival> arrived) const {
  starling::mix(vector(block), arrived, {});
}

void Vectors::mix_sent(Block& block, std::span<const Arrival> arrived) const {
  starling::mix(vector(block, &block.grid), arrived, {});
}

void Vectors::write(const Block& block, const Outgoing& outgoing, Then then) const {
  starling::mix(vector(block), {}, outgoing, std::move(then));
}

bool Vectors::write_again(const Block& block, const Outgoing& outgoing) const {
  return starling::mix(vector(block), {}, on_last_grid(block, outgoing));
}

Arrival Vectors::plus(const Block& block, float weight) const {
  return {.weight = weight, .theirs = as_sent(of(block), block), .mine = zeros_.of(block)};
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

void update_and_write(Block& block, const Rule& rule, std::span<const Arrival> arrived,
                      const Outgoing& outgoing, std::optional<float> scale, const Vectors& v, Then then) {
  if (outgoing.values == nullptr) return update(block, rule, arrived, outgoing, scale, std::move(then));
  const auto finite = std::make_shared<bool>(true);
  update(block, rule, arrived, outgoing, scale, [finite](bool of_x) { *finite = of_x; });
  v.write(block, second_vector(outgoing, block),
          [finite, then = std::move(then)](bool of_v) { then(*finite && of_v); });
}

}  // namespace starling
