// The promises of train/task.h, kept by every task, on its small data.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <utility>

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include "starling/checkpoint/checkpoint.h"
#include "starling/optim/cuda/cuda.h"
#include "starling/train/learner.h"
#include "starling/train/trainer.h"
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

// Adds a batch's examples, as the model sees them.
void add_examples(const Batch& batch, std::multiset<std::string>& seen) {
  for (std::int64_t row = 0; row < batch[0].size(0); ++row) {
    std::string bytes;
    for (const at::Tensor& tensor : batch) {
      if (tensor.dim() == 0) continue;  // it is of the whole batch
      const at::Tensor mine = tensor[row].contiguous();
      bytes.append(static_cast<const char*>(mine.data_ptr()), mine.nbytes());
    }
    seen.insert(bytes);
  }
}

// All workers' examples of an epoch.
std::multiset<std::string> epoch_of(const std::vector<std::unique_ptr<Task>>& workers, std::int64_t epoch) {
  std::multiset<std::string> seen;
  for (const auto& worker : workers) {
    const std::int64_t batches = worker->batches_per_epoch();
    for (std::int64_t k = epoch * batches; k < (epoch + 1) * batches; ++k)
      add_examples(worker->batch(k), seen);
  }
  return seen;
}

TEST_P(TaskContract, AnyNumberOfWorkersSeesEachExampleOfAnEpochOnce) {
  const Recipe mine = recipe(data_.unvaried);
  const MakeTask make = task_of(mine).load(mine);
  std::map<std::int64_t, std::multiset<std::string>> all;  // by epoch
  for (const int workers : {1, 2, 3, 4, 7}) {
    std::vector<std::unique_ptr<Task>> tasks;
    for (int rank = 0; rank < workers; ++rank) tasks.push_back(make({rank, workers}));
    for (const std::int64_t epoch : {0, 2}) {
      const auto seen = epoch_of(tasks, epoch);
      if (workers == 1) {
        all[epoch] = seen;
        ASSERT_EQ(std::set(seen.begin(), seen.end()).size(), data_.train);
      }
      // The rest does not fill a batch of each worker.
      EXPECT_EQ(std::ssize(seen), data_.train / (5 * workers) * 5 * workers) << workers;
      EXPECT_TRUE(std::ranges::includes(all[epoch], seen)) << workers;
    }
  }
}

// One batch of each of 4 workers, then the rest of the epoch, which is 40 examples, and the next
// epoch.
TEST_P(TaskContract, OtherWorkersSeeTheRestOfAnEpochOnce) {
  const Recipe mine = recipe(data_.unvaried);
  const MakeTask make = task_of(mine).load(mine);
  std::vector<std::unique_ptr<Task>> alone;
  alone.push_back(make({}));
  for (const auto& [workers, rest] : std::map<int, std::int64_t>{{3, 2}, {6, 1}}) {
    std::multiset<std::string> first, second;
    for (int rank = 0; rank < 4; ++rank) add_examples(make({rank, 4})->batch(0), first);
    for (int rank = 0; rank < workers; ++rank) {
      const auto task = make({rank, workers, {{std::vector<std::int64_t>(4, 1), 1}}});
      for (std::int64_t k = 0; k < rest; ++k) add_examples(task->batch(1 + k), first);
      for (std::int64_t k = 0; k < task->batches_per_epoch(); ++k)
        add_examples(task->batch(1 + rest + k), second);
    }
    EXPECT_EQ(std::ssize(first), 20 + 5 * workers * rest);
    EXPECT_TRUE(std::ranges::includes(epoch_of(alone, 0), first)) << workers;
    EXPECT_EQ(second, epoch_of(alone, 1)) << workers;
  }
}

// The examples of each class that a worker draws in an epoch.
std::vector<std::int64_t> drawn_in(Task& worker, std::int64_t epoch, std::size_t classes) {
  std::vector<std::int64_t> counts(classes);
  const std::int64_t batches = worker.batches_per_epoch();
  for (std::int64_t k = epoch * batches; k < (epoch + 1) * batches; ++k) {
    const at::Tensor labels = worker.batch(k)[1];
    for (std::int64_t i = 0; i < labels.numel(); ++i)
      ++counts.at(static_cast<std::size_t>(labels[i].item<std::int64_t>()));
  }
  return counts;
}

TEST_P(TaskContract, AWorkerDrawsFromItsShareOfTheClasses) {
  const TaskInfo& info = task_of(recipe());
  if (!info.has_classes) {
    EXPECT_TRUE(task(recipe())->class_counts().empty());
    const std::string text = fmt::format("[data]\nname = '{}'\nsplit = 'by-class'\n", data_.task);
    EXPECT_EQ(
        refusal<UsageError>([&] { parse_recipe(text, "a.toml"); }),
        fmt::format("a.toml:3: data.split = \"by-class\": the task {} has no classes: iid alone is allowed",
                    data_.task));
    return;
  }
  const auto whole = task(recipe({{"data.split", "whole"}}))->class_counts();
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(std::accumulate(whole[0].begin(), whole[0].end(), std::int64_t{0}), data_.train);
  constexpr int kWorkers = 3;  // shares of 20, which are 4 batches
  for (const char* split : {"iid", "dirichlet:0.5", "by-class"}) {
    const Recipe mine = recipe({{"data.split", split}});
    const MakeTask make = info.load(mine);
    std::vector<std::int64_t> sum(whole[0].size());
    std::vector<std::vector<std::int64_t>> all;
    for (int rank = 0; rank < kWorkers; ++rank) {
      const auto worker = make({rank, kWorkers});
      all = worker->class_counts();
      ASSERT_EQ(all.size(), static_cast<std::size_t>(kWorkers));
      const auto& share = all[static_cast<std::size_t>(rank)];
      EXPECT_EQ(drawn_in(*worker, 0, share.size()), share) << split << ' ' << rank;
      if (mine.data.split != "iid") {
        EXPECT_EQ(drawn_in(*worker, 3, share.size()), share) << split << ' ' << rank;
      }
      for (std::size_t c = 0; c < share.size(); ++c) sum[c] += share[c];
    }
    EXPECT_EQ(sum, whole[0]) << split;
    EXPECT_EQ(make({0, kWorkers})->class_counts(), all);
  }
}

// By step, as metrics.jsonl has them.
std::map<int, double> losses_of(const Recipe& recipe) {
  std::map<int, double> losses;
  std::istringstream lines(slurp(recipe.run.out + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    if (record.contains("loss")) losses[record["step"]] = record["loss"];
  }
  return losses;
}

// An epoch is 12 batches. The run stops in step 8, and has to go on from step 5.
TEST_P(TaskContract, ARunThatStopsInAnEpochGoesOnToTheBit) {
  const auto run_in = [&](const char* out) {
    return recipe({{"run.out", folder_ / out},
                   {"run.steps", "14"},
                   {"log.every", "1"},
                   {"checkpoint.every", "5"},
                   {"checkpoint.keep", "3"}});
  };
  const Recipe whole = run_in("whole");
  train(whole, World::alone());

  Recipe stopped = run_in("stopped");
  Observer observer;
  observer.interrupted = [asked = 0]() mutable { return ++asked == 8; };
  EXPECT_THROW(train(stopped, World::alone(), observer), RunInterrupted);
  stopped.checkpoint.resume = stopped.run.out + "/checkpoints";
  ASSERT_EQ(Checkpoint(stopped.checkpoint.resume).manifest().step, 5);
  train(stopped, World::alone());

  for (const char* step : {"step-10", "step-14"}) {
    const std::string file = std::string("/checkpoints/") + step + "/" + worker_file(0);
    EXPECT_TRUE(slurp(whole.run.out + file) == slurp(stopped.run.out + file)) << step;
  }
  EXPECT_EQ(losses_of(whole).size(), 14U);
  EXPECT_EQ(losses_of(stopped), losses_of(whole));
}

TEST_P(TaskContract, WorkersOfAProcessShareTheDataAndNotTheModel) {
  const MakeTask make = task_of(recipe()).load(recipe());
  const auto a = make({0, 2}), b = make({1, 2});
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
  Learner learner(recipe, task_of(recipe).load(recipe), {}, device);
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

TEST_P(TaskContract, ComputesTheSameOnAGpu) {
  const std::string why = find_cuda();  // before torch is asked
  const Recipe on_gpu = recipe({{"run.device", "cuda"}});
  if (!why.empty()) {
    EXPECT_EQ(refusal<UsageError>([&] { device_of(on_gpu, 0); }), "run.device = cuda: " + why);
    GTEST_SKIP() << why;
  }
  at::globalContext().setAllowTF32CuDNN(false);  // it has 10 bits of precision
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
