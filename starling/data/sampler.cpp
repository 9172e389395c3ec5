#include "starling/data/sampler.h"

#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"

namespace starling {

namespace {

std::vector<std::int64_t> all_of(std::int64_t examples) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(examples));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  return all;
}

}  // namespace

Sampler::Sampler(std::vector<std::int64_t> share, std::int64_t examples, std::int64_t batch, int rank,
                 int workers, std::uint64_t seed)
    : batch_(batch),
      batches_(examples / workers / batch),
      rank_(rank),
      seed_(seed),
      own_(true),
      share_(std::move(share)) {
  if (batches_ == 0) {
    throw UsageError(fmt::format("train.batch = {}: {} examples between {} workers give each only {}", batch,
                                 examples, workers, examples / workers));
  }
}

Sampler::Sampler(std::int64_t examples, std::int64_t batch, int rank, int workers, std::uint64_t seed,
                 Split split)
    : Sampler(all_of(examples), examples, batch, rank, workers, seed) {
  own_ = split == Split::whole;
}

std::span<const std::int64_t> Sampler::batch(std::int64_t number) {
  const std::int64_t batches = own_ ? std::ssize(share_) / batch_ : batches_;
  const std::int64_t shuffle = number / batches;
  if (shuffle != shuffled_) {
    // Fisher-Yates. The bias of 64 random bits modulo i + 1 is below 1e-14 for any set that fits in
    // memory.
    order_ = share_;
    for (std::uint64_t i = order_.size() - 1; i > 0; --i) {
      const auto which = static_cast<std::uint64_t>(shuffle);
      const std::uint64_t bits = own_ ? random_bits({seed_, which, i, static_cast<std::uint64_t>(rank_)})
                                      : random_bits({seed_, which, i});
      std::swap(order_[i], order_[bits % (i + 1)]);
    }
    shuffled_ = shuffle;
  }
  const std::int64_t first = (own_ ? 0 : rank_ * batches * batch_) + number % batches * batch_;
  return std::span(order_).subspan(first, batch_);
}

}  // namespace starling
