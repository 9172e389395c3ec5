#include "starling/data/sampler.h"

#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"

namespace starling {

Sampler::Sampler(std::int64_t examples, std::int64_t batch, int rank, int workers, std::uint64_t seed,
                 Split split)
    : batch_(batch),
      batches_(examples / workers / batch),
      rank_(rank),
      seed_(seed),
      split_(split),
      order_(examples) {
  if (batches_ == 0) {
    throw UsageError(fmt::format("train.batch = {}: {} examples between {} workers give each only {}", batch,
                                 examples, workers, examples / workers));
  }
}

std::span<const std::int64_t> Sampler::batch(std::int64_t number) {
  const bool whole = split_ == Split::whole;
  const std::int64_t batches = whole ? static_cast<std::int64_t>(order_.size()) / batch_ : batches_;
  const std::int64_t shuffle = number / batches;
  if (shuffle != shuffled_) {
    // Fisher-Yates. The bias of 64 random bits modulo i + 1 is below 1e-14 for any set that fits in
    // memory.
    std::iota(order_.begin(), order_.end(), std::int64_t{0});
    for (std::uint64_t i = order_.size() - 1; i > 0; --i) {
      const auto which = static_cast<std::uint64_t>(shuffle);
      const std::uint64_t bits = whole ? random_bits({seed_, which, i, static_cast<std::uint64_t>(rank_)})
                                       : random_bits({seed_, which, i});
      std::swap(order_[i], order_[bits % (i + 1)]);
    }
    shuffled_ = shuffle;
  }
  const std::int64_t first = (whole ? 0 : rank_ * batches * batch_) + number % batches * batch_;
  return std::span(order_).subspan(first, batch_);
}

}  // namespace starling
