#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include "tests/train/tasks/small_data.h"

namespace starling {
namespace {

using namespace testing_data;

class FashionMnistTask : public TaskTest {
 protected:
  FashionMnistTask() : TaskTest(small_data_of("fashion-mnist")) {}
};

TEST_F(FashionMnistTask, KeysDecide) {
  EXPECT_EQ(task(recipe({{"data.limit", "20"}}))->batches_per_epoch(), 4);
  EXPECT_EQ(task(recipe({{"data.limit", "1000"}}))->batches_per_epoch(), data_.train / 5);
  const auto whole = task(recipe({{"data.split", "whole"}}), 0, 2);
  EXPECT_FALSE(at::equal(whole->batch(0)[0], task(recipe(), 0, 2)->batch(0)[0]));
  const auto plain = task(recipe({{"data.flip", "false"}})), flipped = task(recipe());
  EXPECT_TRUE(at::equal(plain->batch(0)[1], flipped->batch(0)[1]));
  EXPECT_FALSE(at::equal(plain->batch(0)[0], flipped->batch(0)[0]));
}

TEST_F(FashionMnistTask, ScoreIsTheShareOfRightClasses) {
  const auto mine = task(recipe());
  mine->model().eval();
  const c10::AutoGradMode no_gradient(false);
  EXPECT_EQ(mine->batch(0)[0].sizes(), (std::vector<std::int64_t>{5, 1, 28, 28}));
  const Tally whole = mine->test(0, data_.test);
  EXPECT_EQ(mine->score(whole).value, static_cast<double>(whole.counts[0]) / static_cast<double>(data_.test));
}

TEST_F(FashionMnistTask, NamesTheMissingFile) {
  const Recipe mine = recipe({{"data.dir", "/nowhere"}});
  const auto missing =
      testing::ThrowsMessage<Error>(testing::StartsWith("/nowhere/train-images-idx3-ubyte.gz: not there"));
  EXPECT_THAT([&] { task_of(mine).find_data(mine); }, missing);
  EXPECT_THAT([&] { task_of(mine).load(mine); }, missing);
}

}  // namespace
}  // namespace starling
