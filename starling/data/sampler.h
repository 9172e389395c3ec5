// Which images a worker sees, and in which order.
//
//   split   in every epoch one permutation of the whole set, the same on all workers, is cut into one contiguous shard
//           per worker: shards are disjoint and equally long, so that all workers take the same number of batches. What
//           does not fill a batch on every worker is left out of that epoch (another part in each)
//   whole   every worker goes through the whole set, in permutations of its own
//
// In both an epoch is as many batches as make the set for all workers together.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace starling {

enum class Split { split, whole };

class Sampler {
 public:
  // Throws UsageError when a worker's shard does not fill one batch.
  Sampler(std::int64_t images, std::int64_t batch, int rank, int workers, std::uint64_t seed,
          Split split = Split::split);

  std::int64_t batches_per_epoch() const { return batches_; }
  // The indices of batch number 0, 1, 2, ..., counted on through the epochs. Valid until the next call.
  std::span<const std::int64_t> batch(std::int64_t number);

 private:
  std::int64_t batch_;
  std::int64_t batches_;
  int rank_;
  std::uint64_t seed_;
  Split split_;
  std::int64_t shuffled_ = -1;  // which permutation `order_` is
  std::vector<std::int64_t> order_;
};

}  // namespace starling
