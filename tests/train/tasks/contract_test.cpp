// The promises of train/task.h, kept by every task, on its small data.
#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/cuda.h>
#include <torch/nn/module.h>

#include "starling/core/error.h"
#include "starling/train/learner.h"
#include "tests/refusal.h"
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

// The loss of step 0, and the gradients that it leaves.
std::pair<double, std::vector<at::Tensor>> first_step(const Recipe& recipe, at::Device device) {
  Learner learner(recipe, task_of(recipe).load(recipe), 0, 1, device);
  const auto optimizer = make_optimizer(recipe, learner.model(), World::alone());
  learner.begin_step(0, *optimizer);
  const double loss = learner.gradient(0, *optimizer);
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& p : learner.model().parameters()) gradients.push_back(p.grad().cpu());
  return {loss, gradients};
}

void expect_near(const Recipe& recipe, at::Device device, double relative) {
  Recipe exact = recipe;
  exact.train.autocast = "none";
  const auto [loss, gradients] = first_step(recipe, device);
  const auto [exact_loss, exact_gradients] = first_step(exact, at::kCPU);
  EXPECT_NEAR(loss, exact_loss, relative * exact_loss);
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    ASSERT_EQ(gradients[i].scalar_type(), at::kFloat);
    difference += (gradients[i] - exact_gradients[i]).square().sum().item<double>();
    norm += exact_gradients[i].square().sum().item<double>();
  }
  EXPECT_LT(std::sqrt(difference), 10 * relative * std::sqrt(norm));
  if (recipe.train.autocast != "none") {
    EXPECT_GT(difference, 0);
  }
}

TEST_P(TaskContract, AutocastComputesInBf16AndLeavesFp32) {
  expect_near(recipe({{"train.autocast", "bf16"}}), at::kCPU, 0.02);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

TEST_P(TaskContract, RecomputingChangesNoNumber) {
  Recipe usual = recipe();
  const auto keys = recipe_config(usual).entries();
  if (std::ranges::none_of(keys, [](const auto& key) { return key.name == "recompute"; }))
    GTEST_SKIP() << "the network is small";
  const auto [loss, gradients] = first_step(usual, at::kCPU);
  const auto [same_loss, same_gradients] = first_step(recipe({{"model.recompute", "true"}}), at::kCPU);
  EXPECT_EQ(same_loss, loss);
  EXPECT_TRUE(same(same_gradients, gradients));
}

TEST_P(TaskContract, AGpuComputesTheSame) {
  const Recipe on_gpu = recipe({{"run.device", "cuda"}});
  if (!torch::cuda::is_available()) {
    EXPECT_EQ(refusal<UsageError>([&] { device_of(on_gpu, 0); }),
              "run.device = cuda: torch sees no GPU on this machine");
    GTEST_SKIP() << "no GPU";
  }
  expect_near(on_gpu, device_of(on_gpu, 0), 1e-4);
  const auto mine = task(on_gpu), same = task(recipe());
  mine->model().to(at::kCUDA);
  const c10::AutoGradMode no_gradient(false);
  const Tally gpu = mine->test(0, 5), cpu = same->test(0, 5);
  EXPECT_NEAR(gpu.loss, cpu.loss, 1e-4 * cpu.loss);
  EXPECT_EQ(gpu.examples, cpu.examples);
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
