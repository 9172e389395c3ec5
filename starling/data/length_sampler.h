// Batches of examples of about the same length, filled up to a number of tokens, and their order.
//
// Buckets hold the examples whose lengths differ by at most a tenth. Each epoch shuffles every
// bucket, and cuts it into batches of as many examples as fit in if all have the bucket's largest
// length. The rest of a bucket joins the next one, of longer examples. So an epoch leaves out less
// than one batch of examples, and always has as many batches. Their order is shuffled, and they are
// dealt to the workers: no two workers have a batch in common, and all have as many. The rest that
// is not enough for all workers is left out; each epoch has another rest. deal.h says what happens
// with another number of workers than before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "starling/data/deal.h"

namespace starling {

class LengthSampler {
 public:
  // `lengths`: of each example, at least 1. A batch has at most `tokens`, with the shorter examples
  // filled up to the longest. Throws UsageError if an example is longer than that, or if there is
  // no batch for each worker.
  LengthSampler(std::span<const std::int64_t> lengths, std::int64_t tokens, Drawer who, std::uint64_t seed);

  const Deal& deal() const { return *deal_; }
  std::int64_t batches_per_epoch() const { return deal().batches_per_epoch(); }
  // The indices of batch 0, 1, 2, .., counted on through all epochs. Valid until the next call.
  std::span<const std::int64_t> batch(std::int64_t number);

 private:
  struct Bucket {
    std::int64_t members;   // of its own lengths: as many places in `order_`
    std::int64_t examples;  // of a batch
  };
  struct Cut {
    std::int64_t first, examples;  // places in `order_`
  };
  void shuffle(std::int64_t epoch);

  const std::uint64_t seed_;
  std::vector<Bucket> buckets_;
  std::vector<Cut> batches_;
  std::optional<Deal> deal_;               // of the batches; set by the constructor
  std::int64_t shuffled_ = -1;             // the epoch of `order_`
  std::vector<std::int64_t> by_length_;    // the examples, bucket after bucket
  std::vector<std::int64_t> order_;        // shuffled within the buckets
  std::vector<std::int64_t> batch_order_;  // of `batches_`, as deal_ leaves it
};

}  // namespace starling
