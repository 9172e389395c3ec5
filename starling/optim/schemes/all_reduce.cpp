#include "starling/optim/schemes/all_reduce.h"

#include <algorithm>

#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include "starling/core/clock.h"
#include "starling/core/timeline.h"

namespace starling {

void AllReduce::step() {
  // A bucket holds the block's gradients, then per segment how many workers have one.
  std::vector<at::Tensor> buckets;
  std::vector<Collectives::Pending> sums;
  for (const Block& block : blocks_) {
    const auto segments = static_cast<std::int64_t>(block.segments.size());
    at::Tensor bucket = at::zeros({block.length + segments});
    float* const flat = bucket.mutable_data_ptr<float>();
    for (std::size_t i = 0; i < block.segments.size(); ++i) {
      const Segment& s = block.segments[i];
      at::Tensor keep;
      const float* const g = s.gradient(keep);
      if (g == nullptr) continue;
      std::copy_n(g, s.length, flat + s.offset);
      flat[block.length + static_cast<std::int64_t>(i)] = 1;
    }
    bytes_ += sizeof(float) * static_cast<std::uint64_t>(bucket.numel()) * 2 *
              static_cast<std::uint64_t>(workers_ - 1) / static_cast<std::uint64_t>(workers_);
    sums.push_back(collectives_.all_reduce_sum(bucket));
    buckets.push_back(std::move(bucket));
  }
  const auto mean = [&](std::size_t b) {
    return std::span(buckets[b].mutable_data_ptr<float>(), static_cast<std::size_t>(blocks_[b].length));
  };
  const auto adapt = [&](std::size_t b, std::optional<float> scale) {
    Block& block = blocks_[b];
    const float* const flat = buckets[b].const_data_ptr<float>();
    FlatGradients gradients{flat, {}};
    for (std::size_t i = 0; i < block.segments.size(); ++i) {
      gradients.used.push_back(flat[block.length + static_cast<std::int64_t>(i)] > 0);
    }
    update(block, rule_(block.group), {}, {}, scale, &gradients);
  };
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    {
      RECORD_USER_SCOPE("starling::finish");
      const Timeline::Scope span(blocks_[b].timeline, {.name = "wait", .block = blocks_[b].index});
      const Time begin = Clock::now();
      sums[b].wait();
      waiting_ += seconds(Clock::now() - begin);
    }
    for (float& g : mean(b)) g /= static_cast<float>(workers_);
    if (!clipping_.asked()) adapt(b, 1);
  }
  if (!clipping_.asked()) return;
  const auto scale = clipping_.scale([&] {
    double sum = 0;
    for (std::size_t b = 0; b < blocks_.size(); ++b) sum += sum_of_squares(mean(b));
    return sum;
  });
  for (std::size_t b = 0; b < blocks_.size(); ++b) adapt(b, scale);
}

}  // namespace starling
