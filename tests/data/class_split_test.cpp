#include "starling/data/class_split.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <gmock/gmock.h>

#include "starling/core/random.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using Counts = std::vector<std::vector<std::int64_t>>;

// Labels by chance, of which the first classes have fewer. One class has no example.
ClassSet uneven_set(std::int64_t examples, int classes) {
  return {.examples = examples, .classes = classes, .label = [classes](std::int64_t i) -> std::int64_t {
            const double u = uniform_of(random_bits({7, static_cast<std::uint64_t>(i)}));
            return static_cast<std::int64_t>(std::sqrt(u) * std::max(1, classes - 1));
          }};
}
ClassSet even_set(std::int64_t examples, int classes) {
  return {
      .examples = examples, .classes = classes, .label = [classes](std::int64_t i) { return i % classes; }};
}

ClassSplit dirichlet(double alpha) { return {ClassSplit::Kind::dirichlet, alpha}; }
constexpr ClassSplit kByClass{ClassSplit::Kind::by_class};

std::vector<ClassSplit> kept_splits() {
  std::vector<ClassSplit> splits{kByClass};
  for (const double alpha : {1e-3, 0.01, 0.1, 1.0, 10.0, 1e3, 1e6}) splits.push_back(dirichlet(alpha));
  return splits;
}

TEST(ClassSplit, EveryExampleIsInOneShareAndSharesAreEqual) {
  for (const ClassSplit& split : kept_splits()) {
    for (const int workers : {1, 2, 3, 7, 16, 64}) {
      for (const auto& [examples, classes] : {std::pair{64, 3}, {1003, 10}, {999, 1}, {500, 100}}) {
        SCOPED_TRACE(testing::Message() << "alpha " << split.alpha << ", " << workers << " workers, "
                                        << examples << " examples of " << classes << " classes");
        const ClassSet set = uneven_set(examples, classes);
        const Shares shares = kept_shares(set, split, workers, 3);
        ASSERT_EQ(std::ssize(shares), workers);
        std::vector<std::int64_t> all;
        for (const auto& share : shares) {
          EXPECT_GE(std::ssize(share), examples / workers);
          EXPECT_LE(std::ssize(share), (examples + workers - 1) / workers);
          all.insert(all.end(), share.begin(), share.end());
        }
        std::ranges::sort(all);
        std::vector<std::int64_t> every(static_cast<std::size_t>(examples));
        std::iota(every.begin(), every.end(), 0);
        EXPECT_EQ(all, every);
      }
    }
  }
}

TEST(ClassSplit, SharesFollowFromTheSeed) {
  const ClassSet set = uneven_set(600, 10);
  for (const ClassSplit& split : kept_splits()) {
    EXPECT_EQ(kept_shares(set, split, 5, 3), kept_shares(set, split, 5, 3));
    EXPECT_NE(kept_shares(set, split, 5, 3), kept_shares(set, split, 5, 4));
  }
}

TEST(ClassSplit, ByClassGivesAWorkerAsFewClassesAsCanBe) {
  const Counts ten = class_counts(even_set(1000, 10), kByClass, 1, 10, 3);
  for (std::size_t rank = 0; rank < 10; ++rank) {
    for (std::size_t c = 0; c < 10; ++c) EXPECT_EQ(ten[rank][c], rank == c ? 100 : 0);
  }
  EXPECT_EQ(class_counts(even_set(60, 3), kByClass, 1, 2, 3), (Counts{{20, 10, 0}, {0, 10, 20}}));
  // A class between several workers.
  EXPECT_EQ(class_counts(even_set(60, 2), kByClass, 1, 4, 3), (Counts{{15, 0}, {15, 0}, {0, 15}, {0, 15}}));
}

// The mean over workers of the total variation distance of a worker's classes from those of the
// set: 0 if all are alike, towards 1 - 1/classes if each has one class.
double skew(const ClassSet& set, const ClassSplit& split, int workers, std::uint64_t seed) {
  double distance = 0;
  std::vector<double> p(static_cast<std::size_t>(set.classes));
  for (std::int64_t i = 0; i < set.examples; ++i) p[static_cast<std::size_t>(set.label(i))] += 1;
  for (const auto& counts : class_counts(set, split, 1, workers, seed)) {
    const auto size = static_cast<double>(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
    for (std::size_t c = 0; c < p.size(); ++c)
      distance +=
          std::abs(static_cast<double>(counts[c]) / size - p[c] / static_cast<double>(set.examples)) / 2;
  }
  return distance / workers;
}

TEST(ClassSplit, ASmallerAlphaIsMoreSkewed) {
  for (const ClassSet& set : {even_set(8000, 10), uneven_set(8000, 10)}) {
    for (const std::uint64_t seed : {1, 2, 3}) {
      double before = 1;
      for (const double alpha : {0.01, 0.1, 1.0, 10.0, 1000.0}) {
        const double now = skew(set, dirichlet(alpha), 8, seed);
        EXPECT_LT(now, before) << alpha;
        before = now;
      }
      EXPECT_LT(before, 0.05);
      EXPECT_GT(skew(set, dirichlet(0.01), 8, seed), 0.5);
    }
  }
}

// As long as no class has run out, a worker draws by its q, which has the moments of a
// Dirichlet distribution with ALPHA for each of the C classes: mean 1/C, variance
// (1/C)(1 - 1/C) / (C ALPHA + 1).
TEST(ClassSplit, SharesHaveTheMomentsOfTheDirichletDistribution) {
  constexpr int kClasses = 4, kWorkers = 100, kDraws = 40;
  const ClassSet set = even_set(kClasses * kWorkers * kDraws, kClasses);
  for (const double alpha : {0.5, 2.0, 8.0}) {
    // Only the first quarter of each share: no class runs out so early.
    double squares = 0, count = 0;
    for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
      for (const auto& share : kept_shares(set, dirichlet(alpha), kWorkers, seed)) {
        // Two draws of one worker are of the same class with chance E[sum q^2].
        for (int i = 0; i + 1 < kDraws / 4; i += 2) {
          squares += set.label(share[static_cast<std::size_t>(i)]) ==
                     set.label(share[static_cast<std::size_t>(i + 1)]);
          count += 1;
        }
      }
    }
    const double variance = 1.0 / kClasses * (1 - 1.0 / kClasses) / (kClasses * alpha + 1);
    const double expected = kClasses * (variance + 1.0 / (kClasses * kClasses));
    // 500 workers with 5 pairs each: the standard deviation is below 0.02.
    EXPECT_NEAR(squares / count, expected, 0.08) << alpha;
  }
}

TEST(ClassSplit, ClassesOfTheOtherSplitsAreCountedToo) {
  const ClassSet set = even_set(120, 3);
  EXPECT_EQ(class_counts(set, {ClassSplit::Kind::whole}, 10, 2, 1), (Counts{{40, 40, 40}, {40, 40, 40}}));
  const Counts iid = class_counts(set, {ClassSplit::Kind::iid}, 10, 2, 1);
  for (const auto& counts : iid)
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}), 60);
  for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(iid[0][c] + iid[1][c], 40);
}

TEST(ClassSplit, ASamplerStaysInItsShare) {
  const ClassSet set = uneven_set(103, 5);
  for (const ClassSplit& split : {kByClass, dirichlet(0.5)}) {
    const Shares shares = kept_shares(set, split, 3, 9);
    for (int rank = 0; rank < 3; ++rank) {
      Sampler sampler = make_sampler(set, split, 4, {rank, 3}, 9),
              again = make_sampler(set, split, 4, {rank, 3}, 9);
      EXPECT_EQ(sampler.batches_per_epoch(), 103 / 3 / 4);
      const auto& mine = shares[static_cast<std::size_t>(rank)];
      const std::set<std::int64_t> share(mine.begin(), mine.end());
      std::vector<std::vector<std::int64_t>> passes;
      for (std::int64_t k = 0; k < 24; ++k) {
        const auto batch = sampler.batch(k);
        if (k % 8 == 0) passes.emplace_back();
        passes.back().insert(passes.back().end(), batch.begin(), batch.end());
      }
      for (const auto& pass : passes) {
        EXPECT_EQ(std::set(pass.begin(), pass.end()).size(), 32U);
        for (const std::int64_t example : pass) EXPECT_TRUE(share.contains(example));
      }
      EXPECT_NE(passes[0], passes[1]);
      // In the middle of a later pass.
      EXPECT_THAT(again.batch(21), testing::ElementsAreArray(sampler.batch(21)));
    }
  }
}

TEST(ClassSplit, NamesAreRead) {
  const auto read = [](const std::string& text) { return read_class_split(text, "a.toml:7: data.split"); };
  EXPECT_EQ(read("iid").kind, ClassSplit::Kind::iid);
  EXPECT_EQ(read("whole").kind, ClassSplit::Kind::whole);
  EXPECT_EQ(read("by-class").kind, ClassSplit::Kind::by_class);
  EXPECT_EQ(read("dirichlet:0.1").kind, ClassSplit::Kind::dirichlet);
  EXPECT_EQ(read("dirichlet:0.1").alpha, 0.1);
  EXPECT_EQ(read("dirichlet:1e6").alpha, 1e6);
  for (const char* text :
       {"", "split", "dirichlet", "dirichlet:", "dirichlet:0", "dirichlet:-1", "dirichlet:nan",
        "dirichlet:inf", "dirichlet:1 ", "dirichlet:1e7", "dirichlet:1e-4"})
    EXPECT_EQ(refusal<UsageError>([&] { read(text); }),
              "a.toml:7: data.split = \"" + std::string(text) +
                  "\": allowed is iid, whole, by-class, or dirichlet:ALPHA with ALPHA from 0.001 to 1000000");
  for (const char* text : {"by-class:1", "by_class", "byclass"})
    EXPECT_THAT(refusal<UsageError>([&] { read(text); }),
                testing::HasSubstr("\", did you mean by-class?: allowed is iid, "));
}

}  // namespace
}  // namespace starling
