// The examples of a training set that a worker sees, and their order.
//
//   iid     Each epoch has a permutation of the whole set, the same on all workers. It is cut into
//           one contiguous shard per worker. Shards are disjoint and equally long, so all workers
//           take the same number of batches. The rest that does not fill a batch on every worker is
//           left out of this epoch; each epoch has another rest
//   whole   Every worker goes through the whole set, in its own permutations
//   a share Every worker goes through a share that it keeps, in its own permutations
//           (class_split.h)
//
// In all cases an epoch has as many batches as all workers together need for the set. With another
// number of workers than before, iid deals out the rest of the epoch (deal.h); the others begin a
// new permutation.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "starling/data/deal.h"

namespace starling {

enum class Split { iid, whole };

class Sampler {
 public:
  // Throws UsageError if a worker's shard does not fill one batch.
  Sampler(std::int64_t examples, std::int64_t batch, Drawer who, std::uint64_t seed,
          Split split = Split::iid);
  // `share`: the examples of this worker, no fewer than examples / workers.
  Sampler(std::vector<std::int64_t> share, std::int64_t examples, std::int64_t batch, Drawer who,
          std::uint64_t seed);

  const Deal& deal() const { return deal_; }
  std::int64_t batches_per_epoch() const { return deal_.batches_per_epoch(); }
  // Returns the indices of batch 0, 1, 2, .., counted on through all epochs. Valid until the next
  // call.
  std::span<const std::int64_t> batch(std::int64_t number);

 private:
  void shuffle(std::int64_t shuffle);

  std::int64_t batch_;
  std::uint64_t seed_;
  Deal deal_;
  bool own_;  // permutations of its own, of all of share_
  std::vector<std::int64_t> share_;
  std::int64_t shuffled_ = -1;  // the number of the permutation in `order_`
  std::vector<std::int64_t> order_;
};

}  // namespace starling
