#include "starling/data/sampler.h"

#include <set>

#include <gmock/gmock.h>

#include "tests/refusal.h"

namespace starling {
namespace {

std::vector<std::int64_t> epoch_of(Sampler& sampler, std::int64_t epoch) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 0; i < sampler.batches_per_epoch(); ++i) {
    const auto batch = sampler.batch(epoch * sampler.batches_per_epoch() + i);
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(Sampler, ShardsAreDisjointAndEquallyLong) {
  for (const int workers : {1, 2, 3, 4, 7}) {
    for (const std::int64_t epoch : {0, 1, 5}) {
      std::set<std::int64_t> seen;
      std::size_t total = 0;
      for (int rank = 0; rank < workers; ++rank) {
        Sampler sampler(1003, 10, {rank, workers}, 42);
        EXPECT_EQ(sampler.batches_per_epoch(), 1003 / workers / 10);
        const auto shard = epoch_of(sampler, epoch);
        total += shard.size();
        seen.insert(shard.begin(), shard.end());
      }
      EXPECT_EQ(seen.size(), total);
      EXPECT_GT(total, 1003u - 10u * static_cast<unsigned>(workers));
      EXPECT_GE(*seen.begin(), 0);
      EXPECT_LT(*seen.rbegin(), 1003);
    }
  }
}

TEST(Sampler, WholeIsTheWholeSetInAnOrderOfOnesOwn) {
  constexpr int kImages = 120, kBatch = 10, kWorkers = 3;
  std::vector<std::vector<std::int64_t>> seen;
  for (int rank = 0; rank < kWorkers; ++rank) {
    Sampler sampler(kImages, kBatch, {rank, kWorkers}, 42, Split::whole);
    EXPECT_EQ(sampler.batches_per_epoch(), kImages / kBatch / kWorkers);
    for (const int pass : {0, 1}) {
      auto& mine = seen.emplace_back();
      for (int k = 0; k < kImages / kBatch; ++k) {
        const auto batch = sampler.batch(pass * kImages / kBatch + k);
        mine.insert(mine.end(), batch.begin(), batch.end());
      }
      EXPECT_EQ(std::set(mine.begin(), mine.end()).size(), kImages);
    }
  }
  for (std::size_t a = 0; a < seen.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) EXPECT_NE(seen[a], seen[b]);
  }
}

TEST(Sampler, EverythingFollowsFromSeedEpochAndRank) {
  Sampler a(500, 5, {1, 3}, 7);
  Sampler b(500, 5, {1, 3}, 7);
  const auto later = epoch_of(b, 3);
  EXPECT_NE(epoch_of(a, 0), later);
  EXPECT_EQ(epoch_of(a, 3), later);
  EXPECT_EQ(epoch_of(a, 0), epoch_of(b, 0));  // back to an earlier epoch
  Sampler other_seed(500, 5, {1, 3}, 8);
  EXPECT_NE(epoch_of(other_seed, 3), later);
}

TEST(Sampler, EveryImageComesUpAboutEquallyOften) {
  std::vector<int> count(100);
  Sampler sampler(100, 10, {0, 2}, 1);
  for (std::int64_t epoch = 0; epoch < 400; ++epoch) {
    for (const std::int64_t i : epoch_of(sampler, epoch)) ++count[i];
  }
  // 400 draws with chance 1/2: 200, standard deviation 10.
  for (const int c : count) EXPECT_NEAR(c, 200, 50);
}

TEST(Sampler, RefusesAShardWithoutABatch) {
  EXPECT_EQ(refusal<UsageError>([] { Sampler(100, 32, {0, 4}, 1); }),
            "train.batch = 32: 100 examples between 4 workers give each only 25");
}

}  // namespace
}  // namespace starling
