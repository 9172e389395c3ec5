#include "starling/data/fashion_mnist.h"

#include <numeric>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "starling/core/error.h"
#include "starling/train/evaluate.h"
#include "starling/train/recipe.h"
#include "starling/train/task.h"
#include "tests/data/data_files.h"

namespace starling {
namespace {

using namespace testing_data;

constexpr int kTrain = 60, kTest = 23;

void write_set(const std::string& path, int images, int seed) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(images) * 28 * 28),
      labels(static_cast<std::size_t>(images));
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 7 + i / 784);
  for (std::size_t i = 0; i < labels.size(); ++i)
    labels[i] = static_cast<std::uint8_t>((i + static_cast<std::size_t>(seed)) % 10);
  const auto n = static_cast<std::uint32_t>(images);
  write_gzip(path + "-images-idx3-ubyte.gz", idx_bytes({n, 28, 28}, pixels));
  write_gzip(path + "-labels-idx1-ubyte.gz", idx_bytes({n}, labels));
}

class FashionMnistTaskTest : public testing::Test {
 protected:
  FashionMnistTaskTest() {
    write_set(folder_ / "train", kTrain, 0);
    write_set(folder_ / "t10k", kTest, 3);
  }

  Recipe recipe(const Overrides& overrides = {}) const {
    Recipe recipe;
    recipe.data.name = "fashion-mnist";
    Config config = recipe_config(recipe);
    config.set("data.dir", folder_.path);
    config.set("model.width", "8");
    config.set("train.batch", "5");
    for (const auto& [key, value] : overrides) config.set(key, value);
    return recipe;
  }
  std::unique_ptr<Task> task(const Recipe& recipe, int rank = 0, int workers = 1) const {
    return task_of(recipe).load(recipe)(rank, workers);
  }

  const Folder folder_;
};

bool same(const Batch& a, const Batch& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), at::equal);
}

TEST_F(FashionMnistTaskTest, ABatchFollowsFromSeedRankAndNumber) {
  const auto mine = task(recipe(), 1, 3), again = task(recipe(), 1, 3);
  ASSERT_EQ(mine->batches_per_epoch(), kTrain / 3 / 5);
  std::vector<Batch> batches;
  for (std::int64_t k = 0; k < 9; ++k) batches.push_back(mine->batch(k));
  EXPECT_EQ(batches[0][0].sizes(), (std::vector<std::int64_t>{5, 1, 28, 28}));
  EXPECT_EQ(batches[0][1].sizes(), (std::vector<std::int64_t>{5}));
  // In any order.
  for (std::int64_t k = 8; k >= 0; --k) EXPECT_TRUE(same(again->batch(k), batches[k])) << k;
  EXPECT_FALSE(same(task(recipe(), 2, 3)->batch(0), batches[0]));
  EXPECT_FALSE(same(task(recipe({{"run.seed", "2"}}), 1, 3)->batch(0), batches[0]));
}

TEST_F(FashionMnistTaskTest, WorkersOfAProcessShareTheDataAndNotTheModel) {
  const MakeTask make = task_of(recipe()).load(recipe());
  const auto a = make(0, 2), b = make(1, 2);
  EXPECT_NE(&a->model(), &b->model());
  const auto x = a->model().parameters(), y = b->model().parameters();
  ASSERT_EQ(x.size(), y.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_TRUE(at::equal(x[i], y[i]));
    EXPECT_NE(x[i].data_ptr(), y[i].data_ptr());
  }
}

TEST_F(FashionMnistTaskTest, KeysDecide) {
  EXPECT_EQ(task(recipe({{"data.limit", "20"}}))->batches_per_epoch(), 4);
  EXPECT_EQ(task(recipe({{"data.limit", "1000"}}))->batches_per_epoch(), kTrain / 5);
  const auto whole = task(recipe({{"data.split", "whole"}}), 0, 2);
  EXPECT_FALSE(same(whole->batch(0), task(recipe(), 0, 2)->batch(0)));
  const auto plain = task(recipe({{"data.flip", "false"}})), flipped = task(recipe());
  EXPECT_TRUE(at::equal(plain->batch(0)[1], flipped->batch(0)[1]));
  EXPECT_FALSE(at::equal(plain->batch(0)[0], flipped->batch(0)[0]));
  EXPECT_EQ(task(recipe({{"model.dtype", "bf16"}}))->model().parameters()[0].scalar_type(), at::kBFloat16);
}

TEST_F(FashionMnistTaskTest, TheModelIsThatOfTheSeed) {
  const Recipe mine = recipe({{"run.seed", "5"}});
  const auto a = task_of(mine).model(mine)->parameters(), b = task(mine)->model().parameters();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i]));
}

TEST_F(FashionMnistTaskTest, TalliesOfPartsAddUp) {
  const auto mine = task(recipe());
  ASSERT_EQ(mine->test_examples(), kTest);
  mine->model().eval();
  const c10::AutoGradMode no_gradient(false);
  const Tally whole = mine->test(0, kTest);
  EXPECT_EQ(whole.examples, kTest);
  Tally sum{.counts = {0}};
  for (const auto& [first, last] : std::vector<std::pair<int, int>>{{0, 7}, {7, 7}, {7, 20}, {20, kTest}}) {
    const Tally part = mine->test(first, last);
    ASSERT_EQ(part.counts.size(), 1U);
    EXPECT_EQ(part.examples, last - first);
    sum.examples += part.examples;
    sum.counts[0] += part.counts[0];
    sum.loss += part.loss;
  }
  EXPECT_EQ(sum.counts, whole.counts);
  EXPECT_NEAR(sum.loss, whole.loss, 1e-3);
  const Score score = mine->score(whole);
  EXPECT_EQ(score.value, static_cast<double>(whole.counts[0]) / kTest);
  EXPECT_EQ(score.loss, whole.loss / kTest);
}

TEST_F(FashionMnistTaskTest, NamesTheMissingFile) {
  const Recipe mine = recipe({{"data.dir", "/nowhere"}});
  const auto missing =
      testing::ThrowsMessage<Error>(testing::StartsWith("/nowhere/train-images-idx3-ubyte.gz: not there"));
  EXPECT_THAT([&] { task_of(mine).find_data(mine); }, missing);
  EXPECT_THAT([&] { task_of(mine).load(mine); }, missing);
}

}  // namespace
}  // namespace starling
