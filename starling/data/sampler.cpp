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

Sampler::Sampler(std::vector<std::int64_t> share, std::int64_t examples, std::int64_t batch, Drawer who,
                 std::uint64_t seed)
    : batch_(batch),
      seed_(seed),
      deal_(examples, batch, std::move(who)),
      own_(true),
      share_(std::move(share)) {
  if (const int workers = deal_.who().workers; batches_per_epoch() == 0) {
    throw UsageError(fmt::format("train.batch = {}: {} examples between {} workers give each only {}", batch,
                                 examples, workers, examples / workers));
  }
}

Sampler::Sampler(std::int64_t examples, std::int64_t batch, Drawer who, std::uint64_t seed, Split split)
    : Sampler(all_of(examples), examples, batch, std::move(who), seed) {
  own_ = split == Split::whole;
}

void Sampler::shuffle(std::int64_t shuffle) {
  // Fisher-Yates. The bias of 64 random bits modulo i + 1 is below 1e-14 for any set that fits in
  // memory.
  order_ = share_;
  for (std::uint64_t i = order_.size() - 1; i > 0; --i) {
    const auto which = static_cast<std::uint64_t>(shuffle);
    const std::uint64_t bits =
        own_ ? random_bits({seed_, which, i, static_cast<std::uint64_t>(deal_.who().rank)})
             : random_bits({seed_, which, i});
    std::swap(order_[i], order_[bits % (i + 1)]);
  }
  if (!own_) deal_.leave_rest(shuffle, order_);
  shuffled_ = shuffle;
}

std::span<const std::int64_t> Sampler::batch(std::int64_t number) {
  Deal::Place place;
  if (own_) {
    const std::int64_t batches = std::ssize(share_) / batch_, mine = number - deal_.first_number();
    // No permutation of the workers before, who have gone through fewer of them than epochs.
    const std::int64_t fresh =
        deal_.who().before.empty() ? 0 : deal_.first_epoch() + std::ssize(deal_.who().before);
    place = {.epoch = fresh + mine / batches, .first = mine % batches * batch_};
  } else {
    place = deal_.place(number);
  }
  if (place.epoch != shuffled_) shuffle(place.epoch);
  return std::span(order_).subspan(static_cast<std::size_t>(place.first), static_cast<std::size_t>(batch_));
}

}  // namespace starling
