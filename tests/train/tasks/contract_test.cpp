// The promises of train/task.h, kept by every task, on its small data.
#include <algorithm>
#include <utility>

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include "tests/train/tasks/small_data.h"

namespace starling {
namespace {

using namespace testing_data;

class TaskContract : public TaskTest, public testing::WithParamInterface<SmallData> {
 protected:
  TaskContract() : TaskTest(GetParam()) {}
};

bool same(const Batch& a, const Batch& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), at::equal);
}

TEST(TaskContract, IsTestedForEveryTask) {
  std::vector<std::string> tasks, tested;
  for (const TaskInfo* info : known_tasks()) tasks.emplace_back(info->name);
  for (const SmallData& data : small_data()) tested.push_back(data.task);
  EXPECT_THAT(tested, testing::UnorderedElementsAreArray(tasks));
}

TEST_P(TaskContract, ABatchFollowsFromSeedRankAndNumber) {
  const auto mine = task(recipe(), 1, 3), again = task(recipe(), 1, 3);
  ASSERT_EQ(mine->batches_per_epoch(), data_.train / 3 / 5);
  std::vector<Batch> batches;
  for (std::int64_t k = 0; k < 9; ++k) batches.push_back(mine->batch(k));
  for (const at::Tensor& tensor : batches[0]) {
    if (tensor.dim() > 0) {
      EXPECT_EQ(tensor.size(0), 5);
    }
  }
  // In any order.
  for (std::int64_t k = 8; k >= 0; --k) EXPECT_TRUE(same(again->batch(k), batches[k])) << k;
  EXPECT_FALSE(same(task(recipe(), 2, 3)->batch(0), batches[0]));
  EXPECT_FALSE(same(task(recipe({{"run.seed", "2"}}), 1, 3)->batch(0), batches[0]));
}

TEST_P(TaskContract, WorkersOfAProcessShareTheDataAndNotTheModel) {
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

TEST_P(TaskContract, TheModelIsThatOfTheSeedInTheRecipesType) {
  const Recipe mine = recipe({{"run.seed", "5"}});
  const auto a = task_of(mine).model(mine)->parameters(), b = task(mine)->model().parameters();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i]));
  EXPECT_EQ(task(recipe({{"model.dtype", "bf16"}}))->model().parameters()[0].scalar_type(), at::kBFloat16);
}

TEST_P(TaskContract, LossIsOneNumberWithAGradientForEveryParameter) {
  const auto mine = task(recipe());
  const at::Tensor loss = mine->loss(mine->batch(0));
  EXPECT_EQ(loss.dim(), 0);
  loss.backward();
  for (const auto& p : mine->model().named_parameters()) EXPECT_TRUE(p.value().grad().defined()) << p.key();
}

TEST_P(TaskContract, TalliesOfPartsAddUp) {
  const auto mine = task(recipe());
  ASSERT_EQ(mine->test_examples(), data_.test);
  mine->model().eval();
  const c10::AutoGradMode no_gradient(false);
  const Tally whole = mine->test(0, data_.test);
  EXPECT_EQ(whole.examples, data_.test);
  Tally sum{.counts = std::vector<std::int64_t>(whole.counts.size())};
  for (const auto& [first, last] :
       std::vector<std::pair<int, int>>{{0, 7}, {7, 7}, {7, 20}, {20, data_.test}}) {
    const Tally part = mine->test(first, last);
    ASSERT_EQ(part.counts.size(), whole.counts.size());
    EXPECT_EQ(part.examples, last - first);
    sum.examples += part.examples;
    for (std::size_t i = 0; i < sum.counts.size(); ++i) sum.counts[i] += part.counts[i];
    sum.loss += part.loss;
  }
  EXPECT_EQ(sum.counts, whole.counts);
  EXPECT_NEAR(sum.loss, whole.loss, 1e-3);
  EXPECT_EQ(mine->score(whole).loss, whole.loss / static_cast<double>(data_.losses * data_.test));
}

INSTANTIATE_TEST_SUITE_P(Tasks, TaskContract, testing::ValuesIn(small_data()), [](const auto& one) {
  std::string name = one.param.task;
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace starling
