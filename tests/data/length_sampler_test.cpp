#include "starling/data/length_sampler.h"

#include <algorithm>
#include <set>
#include <vector>

#include <gmock/gmock.h>

#include "starling/core/random.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using Batch = std::vector<std::int64_t>;

constexpr std::int64_t kTokens = 400;

std::vector<std::int64_t> some_lengths(std::size_t examples, std::uint64_t longest) {
  std::vector<std::int64_t> lengths(examples);
  for (std::size_t i = 0; i < examples; ++i)
    lengths[i] = 1 + static_cast<std::int64_t>(random_bits({7, i}) % longest);
  return lengths;
}
const std::vector<std::int64_t> kLengths = some_lengths(2000, 90);

std::int64_t longest_of(const Batch& batch, const std::vector<std::int64_t>& lengths = kLengths) {
  std::int64_t longest = 0;
  for (const std::int64_t example : batch)
    longest = std::max(longest, lengths[static_cast<std::size_t>(example)]);
  return longest;
}

std::vector<Batch> epoch(std::int64_t number, int workers, std::uint64_t seed = 1) {
  std::vector<Batch> batches;
  for (int rank = 0; rank < workers; ++rank) {
    LengthSampler sampler(kLengths, kTokens, {rank, workers}, seed);
    const std::int64_t n = sampler.batches_per_epoch();
    for (std::int64_t k = number * n; k < (number + 1) * n; ++k) {
      const auto batch = sampler.batch(k);
      batches.emplace_back(batch.begin(), batch.end());
    }
  }
  return batches;
}

std::set<std::int64_t> members(const std::vector<Batch>& batches) {
  std::set<std::int64_t> all;
  for (const Batch& batch : batches) {
    for (const std::int64_t example : batch) EXPECT_TRUE(all.insert(example).second) << example;
  }
  return all;
}

TEST(LengthSampler, ABatchIsFullOfTokensAndHasLittlePadding) {
  std::int64_t padded = 0, tokens = 0;
  for (const Batch& batch : epoch(0, 1)) {
    const std::int64_t size = std::ssize(batch) * longest_of(batch);
    EXPECT_LE(size, kTokens);
    padded += size;
    for (const std::int64_t example : batch) tokens += kLengths[static_cast<std::size_t>(example)];
    EXPECT_GT(std::ssize(batch) * (longest_of(batch) * 11 / 10 + 2),
              kTokens - longest_of(batch) * 11 / 10 - 2);
  }
  EXPECT_GT(static_cast<double>(tokens), 0.9 * static_cast<double>(padded));
}

TEST(LengthSampler, AnEpochHasEachExampleOnceButLessThanABatchOfTheLongest) {
  std::set<std::int64_t> seen;
  for (std::int64_t k = 0; k < 3; ++k) {
    const auto all = members(epoch(k, 1));
    EXPECT_GT(all.size(), kLengths.size() - 5);
    seen.insert(all.begin(), all.end());
  }
  EXPECT_EQ(seen.size(), kLengths.size());  // each epoch leaves out others
}

TEST(LengthSampler, WorkersShareTheBatchesOfTheEpoch) {
  const auto alone = epoch(1, 1);
  const std::set<Batch> all(alone.begin(), alone.end());
  for (const int workers : {2, 3, 7}) {
    const auto together = epoch(1, workers);
    const auto each = alone.size() / static_cast<std::size_t>(workers);
    EXPECT_EQ(together.size(), each * static_cast<std::size_t>(workers));
    for (const Batch& batch : together) EXPECT_TRUE(all.contains(batch));
    members(together);  // no example twice
  }
}

TEST(LengthSampler, EpochsAndSeedsShuffleTheBatchesAndWhatIsInThem) {
  const auto first = epoch(0, 1);
  for (const auto& other : {epoch(1, 1), epoch(0, 1, 2)}) {
    ASSERT_EQ(other.size(), first.size());
    EXPECT_NE(other, first);
    const std::set<Batch> batches(first.begin(), first.end());
    const auto same =
        std::ranges::count_if(other, [&](const Batch& batch) { return batches.contains(batch); });
    EXPECT_LT(static_cast<std::size_t>(same), first.size() / 10);
    // Long and short ones come by turns, in another order.
    std::vector<std::int64_t> lengths, others;
    for (std::size_t i = 0; i < first.size(); ++i) {
      lengths.push_back(longest_of(first[i]));
      others.push_back(longest_of(other[i]));
    }
    EXPECT_FALSE(std::ranges::is_sorted(lengths));
    EXPECT_NE(lengths, others);
  }
}

TEST(LengthSampler, ABatchFollowsFromItsNumberInAnyOrder) {
  LengthSampler forth(kLengths, kTokens, {1, 3}, 5), back(kLengths, kTokens, {1, 3}, 5);
  const std::int64_t batches = 2 * forth.batches_per_epoch() + 3;
  std::vector<Batch> expected;
  for (std::int64_t k = 0; k < batches; ++k)
    expected.emplace_back(forth.batch(k).begin(), forth.batch(k).end());
  for (std::int64_t k = batches; k-- > 0;) {
    const auto batch = back.batch(k);
    EXPECT_EQ(Batch(batch.begin(), batch.end()), expected[static_cast<std::size_t>(k)]) << k;
  }
}

TEST(LengthSampler, RefusesInOneLine) {
  const auto refused = [](std::int64_t tokens, int workers) {
    return refusal<UsageError>(
        [&] { LengthSampler(std::vector<std::int64_t>{3, 9, 4}, tokens, {0, workers}, 1); });
  };
  EXPECT_EQ(refused(8, 1), "train.batch = 8: an example has 9 tokens, and a batch holds at least one");
  EXPECT_EQ(refused(9, 4), "train.batch = 9: 3 examples make 2 batches, too few for 4 workers");
  EXPECT_EQ(LengthSampler(std::vector<std::int64_t>{3, 9, 4}, 9, {0, 2}, 1).batches_per_epoch(), 1);
}

}  // namespace
}  // namespace starling
