#include <cmath>
#include <set>

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include "tests/refusal.h"
#include "tests/train/tasks/small_data.h"

namespace starling {
namespace {

using namespace testing_data;

constexpr int kContext = 8;

class TextTask : public TaskTest {
 protected:
  TextTask() : TaskTest(small_data_of("text")) {}

  // The first token of each window in an epoch of all workers, which is its place.
  std::multiset<std::int64_t> starts(int workers, std::int64_t epoch) const {
    std::multiset<std::int64_t> starts;
    for (int rank = 0; rank < workers; ++rank) {
      const auto mine = task(recipe(), rank, workers);
      const std::int64_t batches = mine->batches_per_epoch();
      for (std::int64_t k = epoch * batches; k < (epoch + 1) * batches; ++k) {
        const at::Tensor tokens = mine->batch(k)[0];
        for (std::int64_t row = 0; row < tokens.size(0); ++row)
          starts.insert(tokens[row][0].item<std::int64_t>());
      }
    }
    return starts;
  }
};

TEST_F(TextTask, ABatchIsWindowsAndTheTokensBehind) {
  const Batch batch = task(recipe())->batch(0);
  ASSERT_EQ(batch[0].sizes(), (std::vector<std::int64_t>{5, kContext}));
  for (int t = 1; t < kContext; ++t) EXPECT_TRUE(at::equal(batch[0].select(1, t), batch[0].select(1, 0) + t));
  EXPECT_TRUE(at::equal(batch[1], batch[0] + 1));
}

TEST_F(TextTask, AnEpochIsAllWindowsFromARandomPlaceOnHoweverManyWorkers) {
  std::set<std::int64_t> places;
  for (std::int64_t epoch = 0; epoch < 20; ++epoch) {
    const auto all = starts(1, epoch);
    ASSERT_EQ(std::ssize(all), data_.train);
    const std::int64_t place = *all.begin();
    EXPECT_LT(place, kContext);
    std::int64_t next = place;
    for (const std::int64_t start : all) {
      EXPECT_EQ(start, next);
      next += kContext;
    }
    EXPECT_EQ(starts(2, epoch), all);
    EXPECT_EQ(starts(4, epoch), all);
    places.insert(place);
  }
  EXPECT_GT(places.size(), 4U);
}

TEST_F(TextTask, ScoreIsThePerplexityOfTheFirstWindows) {
  const auto all = task(recipe()), some = task(recipe({{"data.test_limit", "9"}}));
  const c10::AutoGradMode no_gradient(false);
  EXPECT_EQ(some->test_examples(), 9);
  const Tally whole = all->test(0, 9), part = some->test(0, 9);
  EXPECT_EQ(whole.loss, part.loss);
  EXPECT_EQ(all->score(whole).value, std::exp(whole.loss / 9));
  EXPECT_NEAR(all->score(whole).loss, std::log(500), 0.1);  // it knows nothing yet
}

TEST_F(TextTask, RefusesInOneLine) {
  const auto refused = [&](const Overrides& keys) { return refusal<Error>([&] { task(recipe(keys)); }); };
  EXPECT_EQ(refused({{"data.dir", ""}}), "data.dir is not set: the folder of train.bin and val.bin");
  EXPECT_EQ(refused({{"data.dir", "/nowhere"}}),
            "/nowhere/train.bin: cannot be opened: No such file or directory");
  EXPECT_EQ(refused({{"model.context", "200"}, {"train.batch", "1"}}),
            "val.bin has 188 tokens, too few for a window of model.context = 200");
  EXPECT_EQ(refused({{"train.batch", "70"}}),
            "train.batch = 70: 60 examples between 1 workers give each only 60");
  const Recipe other = recipe({{"model.vocabulary", "100"}});
  EXPECT_THAT(refusal<Error>([&] {
                const auto mine = task(other);
                for (std::int64_t k = 0; k < mine->batches_per_epoch(); ++k) mine->batch(k);
              }),
              testing::HasSubstr("is not in the vocabulary of 100 tokens"));
}

}  // namespace
}  // namespace starling
