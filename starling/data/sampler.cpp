#include "starling/data/sampler.h"

#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"

namespace starling {

Sampler::Sampler(std::int64_t images, std::int64_t batch, int rank, int workers, std::uint64_t seed)
    : batch_(batch), batches_(images / workers / batch), rank_(rank), seed_(seed), order_(images) {
  if (batches_ == 0) {
    throw UsageError(fmt::format("train.batch = {}: {} images between {} workers give each only {}", batch,
                                 images, workers, images / workers));
  }
}

std::span<const std::int64_t> Sampler::batch(std::int64_t number) {
  const std::int64_t epoch = number / batches_;
  if (epoch != epoch_) {
    // Fisher-Yates; the bias of taking 64 random bits modulo i + 1 is below 1e-14 for any set that fits in
    // memory.
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    for (std::uint64_t i = order_.size() - 1; i > 0; --i) {
      std::swap(order_[i], order_[random_bits({seed_, static_cast<std::uint64_t>(epoch), i}) % (i + 1)]);
    }
    epoch_ = epoch;
  }
  const std::int64_t first = rank_ * batches_ * batch_ + number % batches_ * batch_;
  return std::span(order_).subspan(first, batch_);
}

}  // namespace starling
