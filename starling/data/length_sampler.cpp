#include "starling/data/length_sampler.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"

namespace starling {

namespace {

// The largest length of each bucket, up to `longest`.
std::vector<std::int64_t> bounds_to(std::int64_t longest) {
  std::vector<std::int64_t> bounds;
  for (std::int64_t bound = 1; bound < longest; bound += std::max<std::int64_t>(1, bound / 10))
    bounds.push_back(bound);
  bounds.push_back(longest);
  return bounds;
}

// Fisher-Yates, as sampler.cpp.
void permute(std::span<std::int64_t> values, std::uint64_t seed, std::uint64_t epoch, std::uint64_t which) {
  for (std::uint64_t i = values.size(); i-- > 1;)
    std::swap(values[i], values[random_bits({seed, epoch, which, i}) % (i + 1)]);
}

}  // namespace

LengthSampler::LengthSampler(std::span<const std::int64_t> lengths, std::int64_t tokens, Drawer who,
                             std::uint64_t seed)
    : seed_(seed), by_length_(lengths.size()) {
  std::iota(by_length_.begin(), by_length_.end(), std::int64_t{0});
  const auto length_of = [&](std::int64_t example) { return lengths[static_cast<std::size_t>(example)]; };
  std::ranges::stable_sort(by_length_, {}, length_of);
  const std::int64_t longest = by_length_.empty() ? 1 : length_of(by_length_.back());
  if (longest > tokens)
    throw UsageError(fmt::format("train.batch = {}: an example has {} tokens, and a batch holds at least one",
                                 tokens, longest));

  std::int64_t first = 0, rest = 0;
  for (const std::int64_t bound : bounds_to(longest)) {
    const auto behind = std::ranges::upper_bound(by_length_, bound, {}, length_of);
    const std::int64_t end = behind - by_length_.begin();
    const Bucket& bucket = buckets_.emplace_back(Bucket{.members = end - first, .examples = tokens / bound});
    std::int64_t begin = first - rest;
    for (; begin + bucket.examples <= end; begin += bucket.examples)
      batches_.push_back({begin, bucket.examples});
    first = end;
    rest = end - begin;
  }
  if (std::ssize(batches_) < who.workers)
    throw UsageError(fmt::format("train.batch = {}: {} examples make {} batches, too few for {} workers",
                                 tokens, lengths.size(), batches_.size(), who.workers));
  deal_.emplace(std::ssize(batches_), 1, std::move(who), Deal::How::turns);
}

void LengthSampler::shuffle(std::int64_t epoch) {
  const auto which = static_cast<std::uint64_t>(epoch);
  order_ = by_length_;
  std::int64_t first = 0, rest = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const std::int64_t begin = first - rest, size = rest + buckets_[i].members;
    permute(std::span(order_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size)), seed_,
            which, i + 1);
    first += buckets_[i].members;
    rest = size % buckets_[i].examples;
  }
  batch_order_.resize(batches_.size());
  std::iota(batch_order_.begin(), batch_order_.end(), std::int64_t{0});
  permute(batch_order_, seed_, which, 0);
  deal().leave_rest(epoch, batch_order_);
  shuffled_ = epoch;
}

std::span<const std::int64_t> LengthSampler::batch(std::int64_t number) {
  const auto [epoch, turn] = deal().place(number);
  if (epoch != shuffled_) shuffle(epoch);
  const Cut& cut = batches_[static_cast<std::size_t>(batch_order_[static_cast<std::size_t>(turn)])];
  return std::span(order_).subspan(static_cast<std::size_t>(cut.first),
                                   static_cast<std::size_t>(cut.examples));
}

}  // namespace starling
