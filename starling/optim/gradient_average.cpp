#include "starling/optim/gradient_average.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/failpoint.h"
#include "starling/core/timeline.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {

GradientAverage::GradientAverage(std::string scheme, std::vector<Block>& blocks, Collectives& collectives,
                                 int workers, Owners owners)
    : scheme_(std::move(scheme)),
      blocks_(blocks),
      collectives_(collectives),
      workers_(workers),
      owners_(std::move(owners)),
      holders_(holders_of(blocks)),
      hooks_(parameters_of(blocks), [this](std::size_t parameter) { accumulated(parameter); }) {
  for (const Block& block : blocks_) {
    if (block.device != blocks_.front().device)
      throw UsageError(
          fmt::format("scheme \"{}\" needs all parameters on one device: there are some on {} and some on {}",
                      scheme_, blocks_.front().device.str(), block.device.str()));
    const auto segments = static_cast<std::int64_t>(block.segments.size());
    buckets_.push_back({at::empty({block.length + segments},
                                  at::TensorOptions(at::kFloat).pinned_memory(block.device.is_cuda()))});
  }
}

void GradientAverage::step(const std::function<void()>& adapt) {
  if (!averaged_) {
    begin_pass();
    finish_pass();
  }
  averaged_ = false;
  for (std::size_t b = 0; b < owners_.of_block.size(); ++b) {
    if (gradients(blocks_[b]) != buckets_[b].sent)
      throw UsageError(
          "hierarchy = \"node\": .grad was changed between backward() and step(), and what is averaged "
          "within the node is what backward() left there: use the option clip for its norm, and no "
          "GradScaler");
  }
  for (std::size_t b = 0; b < owners_.of_block.size(); ++b) {
    if (owners_.of_block[b] == owners_.me) write_mean(b);
  }
  adapt();
  hooks_.watch();
}

void GradientAverage::accumulated(std::size_t parameter) {
  if (!sync_) {
    averaged_ = false;
    return;
  }
  if (!in_pass_) {
    begin_pass();
    BackwardHooks::at_end_of_pass([this] { finish_pass(); });
  }
  if (there_[parameter]) {
    throw Error(
        fmt::format("scheme \"{}\": parameter {} has its gradient a second time in one backward pass, or the "
                    "last pass failed",
                    scheme_, parameter));
  }
  there_[parameter] = true;
  for (const std::size_t b : holders_[parameter]) --buckets_[b].missing;
  while (left_ > 0 && buckets_[left_ - 1].missing == 0) start(--left_);
}

void GradientAverage::begin_pass() {
  in_pass_ = true;
  left_ = buckets_.size();
  there_.assign(holders_.size(), false);
  for (std::size_t b = 0; b < buckets_.size(); ++b) {
    const auto& segments = blocks_[b].segments;
    buckets_[b].missing = static_cast<std::size_t>(std::count_if(
        segments.begin(), segments.end(), [](const Segment& s) { return s.parameter.requires_grad(); }));
  }
}

void GradientAverage::start(std::size_t b) {
  const c10::AutoGradMode no_gradient(false);
  Bucket& bucket = buckets_[b];
  const Block& block = blocks_[b];
  float* const flat = bucket.flat.mutable_data_ptr<float>();
  float* has = flat + block.length;
  std::vector<Moved> on_gpu;
  for (const Segment& s : block.segments) {
    s.check_gradient();
    at::Tensor keep;
    const void* const g = s.gradient(keep);
    if (g != nullptr && block.on_device) {
      on_gpu.push_back({stretch(keep, s.begin, s.length), bucket.flat.narrow(0, s.offset, s.length)});
    } else if (g != nullptr) {
      kernels::decode(g, s.format, static_cast<std::size_t>(s.length), flat + s.offset);
    } else {
      std::fill_n(flat + s.offset, s.length, 0.0f);
    }
    *has++ = g != nullptr ? 1 : 0;
  }
  if (!on_gpu.empty()) copy_to_host(block, on_gpu);
  bytes_ += sizeof(float) * static_cast<std::uint64_t>(bucket.flat.numel()) * 2 *
            static_cast<std::uint64_t>(workers_ - 1) / static_cast<std::uint64_t>(workers_);
  const auto& owners = owners_.of_block;
  if (!owners.empty()) bucket.sent = gradients(block);
  bucket.sum = owners.empty() ? collectives_.all_reduce_sum(bucket.flat)
                              : collectives_.reduce_sum(bucket.flat, owners[b]);
}

void GradientAverage::finish_pass() {
  const c10::AutoGradMode no_gradient(false);
  while (left_ > 0) start(--left_);
  for (std::size_t b = buckets_.size(); b-- > 0;) {
    Bucket& bucket = buckets_[b];
    {
      RECORD_USER_SCOPE("starling::finish");
      const Timeline::Scope span(blocks_[b].timeline, {.name = "wait", .block = static_cast<int>(b)});
      failpoint("exchange");
      const Time begin = collectives_.now();
      bucket.sum->wait();
      waiting_ += seconds(collectives_.now() - begin);
    }
    bucket.sum.reset();
    if (owners_.of_block.empty()) write_mean(b);
  }
  in_pass_ = false;
  averaged_ = true;
}

std::vector<GradientAverage::Gradient> GradientAverage::gradients(const Block& block) {
  std::vector<Gradient> all;
  for (const Segment& s : block.segments) {
    const at::Tensor& g = s.parameter.grad();
    all.push_back(g.defined() ? Gradient{g.unsafeGetTensorImpl(), static_cast<std::uint32_t>(g._version())}
                              : Gradient{});
  }
  return all;
}

void GradientAverage::write_mean(std::size_t b) {
  const float* const flat = buckets_[b].flat.const_data_ptr<float>();
  const float* has = flat + blocks_[b].length;
  std::vector<Moved> on_gpu;
  for (const Segment& s : blocks_[b].segments) {
    if (*has++ == 0) continue;
    auto* const g = static_cast<std::byte*>(s.mutable_gradient());
    if (blocks_[b].on_device) {
      on_gpu.push_back({stretch(s.parameter.grad(), s.begin, s.length),
                        buckets_[b].flat.narrow(0, s.offset, s.length).div_(workers_)});
      continue;
    }
    std::array<float, 1024> mean{};
    for (std::int64_t at = 0; at < s.length; at += mean.size()) {
      const auto n = static_cast<std::size_t>(std::min<std::int64_t>(mean.size(), s.length - at));
      const float* const sum = flat + s.offset + at;
      for (std::size_t i = 0; i < n; ++i) mean[i] = sum[i] / static_cast<float>(workers_);
      kernels::encode(mean.data(), n, s.format, g + bytes_of(s.format, static_cast<std::size_t>(at)));
    }
  }
  if (!on_gpu.empty()) copy_from_host(blocks_[b], on_gpu);
}

}  // namespace starling
