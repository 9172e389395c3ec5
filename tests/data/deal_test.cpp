#include "starling/data/deal.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <gmock/gmock.h>

#include "starling/data/length_sampler.h"
#include "starling/data/sampler.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::HasSubstr;

struct Part {
  std::string name;
  std::vector<std::vector<std::int64_t>> drawn;  // batches of each worker, before each change
  int workers = 1;                               // then
};

// After 7 batches of each of 4 workers, and so on. An epoch of 4 workers has 12 batches.
std::vector<Part> parts() {
  return {{"FourThenThree", {{7, 7, 7, 7}}, 3},
          {"FourThenSix", {{7, 7, 7, 7}}, 6},
          {"FourThenOne", {{11, 11, 11, 11}}, 1},
          {"AtTheEndOfAnEpoch", {{12, 12, 12, 12}}, 3},
          {"InALaterEpoch", {std::vector<std::int64_t>(4, 12 * 5 + 2)}, 6},
          {"TwoChangesInOneEpoch", {{3, 3, 3, 3}, {4, 4}}, 3},
          {"ThreeChanges", {{3, 3, 3, 3}, {4, 4}, {1, 1, 1, 1, 1}}, 2},
          {"WorkersAtDifferentSteps", {{2, 9, 5, 0}}, 3},
          {"WorkersInDifferentEpochs", {{5, 14, 30, 9}}, 2}};
}

class DealtAnew : public testing::TestWithParam<Part> {
 protected:
  // The drawers of part i of the run.
  std::vector<Drawer> drawers(std::size_t i) const {
    const auto& drawn = GetParam().drawn;
    const auto workers = i < drawn.size() ? static_cast<int>(drawn[i].size()) : GetParam().workers;
    std::vector<Drawer> all;
    for (int rank = 0; rank < workers; ++rank) {
      Drawer& who = all.emplace_back(Drawer{rank, workers});
      std::int64_t end = 0;
      for (std::size_t k = 0; k < i; ++k) {
        end += drawn[k].front();
        who.before.push_back({drawn[k], end});
      }
    }
    return all;
  }

  // Runs until every worker has begun epoch `epochs`, and checks each example's draws by epoch.
  // draw(who, number) returns the epoch and the examples of a batch.
  template <class Draw>
  void check(std::int64_t epochs, std::int64_t examples, std::int64_t most_left_out, const Draw& draw) const {
    std::map<std::int64_t, std::multiset<std::int64_t>> seen;
    for (std::size_t i = 0; i <= GetParam().drawn.size(); ++i) {
      for (const Drawer& who : drawers(i)) {
        const bool last = i == GetParam().drawn.size();
        const std::int64_t first = who.before.empty() ? 0 : who.before.back().end;
        const std::int64_t end = last ? std::numeric_limits<std::int64_t>::max()
                                      : first + GetParam().drawn[i][static_cast<std::size_t>(who.rank)];
        for (std::int64_t number = first; number < end; ++number) {
          const auto [epoch, batch] = draw(who, number);
          if (last && epoch >= epochs) break;
          seen[epoch].insert(batch.begin(), batch.end());
        }
      }
    }
    for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
      const auto& all = seen[epoch];
      const std::set<std::int64_t> once(all.begin(), all.end());
      EXPECT_EQ(once.size(), all.size()) << "an example is drawn twice in epoch " << epoch;
      EXPECT_LE(examples - std::ssize(once), most_left_out) << epoch;
    }
  }
};

TEST_P(DealtAnew, EachExampleOfAnEpochOnce) {
  constexpr std::int64_t kExamples = 249, kBatch = 5;
  check(8, kExamples, kBatch * GetParam().workers + kBatch * 4 - 1,
        [&](const Drawer& who, std::int64_t number) {
          Sampler sampler(kExamples, kBatch, who, 11);
          const auto batch = sampler.batch(number);
          return std::pair(sampler.deal().place(number).epoch, std::vector(batch.begin(), batch.end()));
        });
}

TEST_P(DealtAnew, EachBatchOfAlikeLengthsOnce) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < 500; ++i) lengths.push_back(3 + i % 7);
  // In examples: a batch has at most 13 of them.
  check(8, 500, 13 * (GetParam().workers + 4), [&](const Drawer& who, std::int64_t number) {
    LengthSampler sampler(lengths, 40, who, 11);
    const auto batch = sampler.batch(number);
    return std::pair(sampler.deal().place(number).epoch, std::vector(batch.begin(), batch.end()));
  });
}

// The run ends where the examples of so many epochs end.
TEST_P(DealtAnew, TheBatchesToAnEpochsEndAreThoseThatAreLeft) {
  for (const Drawer& who : drawers(GetParam().drawn.size())) {
    const Deal deal(249, 5, who);
    for (const std::int64_t epochs : {5, 6, 9}) {
      const auto batches = static_cast<std::int64_t>(deal.batches_to(static_cast<double>(epochs)));
      const std::int64_t next = deal.first_number() + batches;
      EXPECT_EQ(deal.place(next).epoch, std::max(epochs, deal.first_epoch()));
      if (batches > 0) {
        EXPECT_LT(deal.place(next - 1).epoch, epochs);
      }
    }
    EXPECT_EQ(deal.batches_to(0), 0);
    const double before = deal.epochs_before();
    const Part& part = GetParam();
    double drawn = 0;
    for (const auto& each : part.drawn) drawn = std::accumulate(each.begin(), each.end(), drawn);
    EXPECT_NEAR(before, drawn * 5 / 249, 0.3);  // what epochs leave out is in it
  }
}

INSTANTIATE_TEST_SUITE_P(Deal, DealtAnew, testing::ValuesIn(parts()),
                         [](const auto& info) { return info.param.name; });

TEST(Deal, SharesOfOnesOwnBeginAnOrderThatNobodyHadBefore) {
  const auto order = [](const Drawer& who, std::int64_t first) {
    Sampler sampler(60, 5, who, 3, Split::whole);
    std::vector<std::int64_t> all;
    for (std::int64_t k = first; k < first + 12; ++k) {
      const auto batch = sampler.batch(k);
      all.insert(all.end(), batch.begin(), batch.end());
    }
    return all;
  };
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t pass = 0; pass < 3; ++pass) orders.insert(order({1, 2}, 12 * pass));
  const std::int64_t changed = 12 * 2 + 5;
  const Drawer then{1, 3, {{{changed, changed}, changed}}};
  for (std::int64_t pass = 0; pass < 3; ++pass) orders.insert(order(then, changed + 12 * pass));
  EXPECT_EQ(orders.size(), 6U);
  for (const auto& each : orders) EXPECT_EQ(std::set(each.begin(), each.end()).size(), 60U);
}

TEST(Deal, DrawsThatCannotBeAreRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(refusal([] { Deal(20, 5, {0, 2, {{std::vector<std::int64_t>(5, 1), 1}}}); }),
              HasSubstr("20 examples in batches of 5 cannot have been dealt to 5 workers"));
  EXPECT_THAT(refusal([] { Deal(20, 5, {0, 2, {{{0, kMost}, 1}}}); }), HasSubstr("epochs apart, more than"));
  EXPECT_EQ(Deal(20, 5, {0, 2, {{{kMost, kMost}, kMost}}}).first_epoch(), kMost / 2);
}

}  // namespace
}  // namespace starling
