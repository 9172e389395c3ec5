// Every task of the table, and the code that treats all tasks alike.
#include "starling/train/task.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <torch/nn/modules/linear.h>

#include "starling/train/evaluate.h"
#include "starling/train/recipe.h"
#include "tests/optim/flock.h"

namespace starling {
namespace {

Recipe recipe_of(const TaskInfo& task) {
  Recipe recipe;
  recipe.data.name = task.name;
  return recipe;
}

std::map<std::string, std::string> allowed_in(Recipe recipe) {
  std::map<std::string, std::string> allowed;
  for (const auto& entry : recipe_config(recipe).entries())
    EXPECT_TRUE(allowed.emplace(entry.section + "." + entry.name, entry.allowed).second) << entry.name;
  return allowed;
}

TEST(Tasks, NamesOfTheTableAreTheRecipesChoices) {
  std::vector<std::string_view> names;
  for (const TaskInfo* task : known_tasks()) names.push_back(task->name);
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
  EXPECT_EQ(Recipe{}.data.name, names.front());
  for (const TaskInfo* task : known_tasks()) {
    SCOPED_TRACE(task->name);
    EXPECT_EQ(&task_of(recipe_of(*task)), task);
    EXPECT_EQ(allowed_in(recipe_of(*task)).at("data.name"), fmt::format("one of {}", fmt::join(names, ", ")));
  }
}

TEST(Tasks, EachDescribesItself) {
  for (const TaskInfo* task : known_tasks()) {
    SCOPED_TRACE(task->name);
    for (const std::string_view text : {task->examples, task->batch_of, task->drawn, task->score.name})
      EXPECT_FALSE(text.empty());
    const Recipe recipe = recipe_of(*task);
    Recipe copy = recipe;
    // Its defaults are compatible.
    if (task->check != nullptr) {
      EXPECT_NO_THROW(task->check(recipe, recipe_config(copy)));
    }
  }
}

TEST(Tasks, CommandLinesKnowTheKeysOfAll) {
  std::set<std::string> expected, known;
  for (const TaskInfo* task : known_tasks()) {
    for (const auto& [key, allowed] : allowed_in(recipe_of(*task))) expected.insert(key);
  }
  std::map<std::string, std::string> meanings;
  for (const auto& [key, meaning] : recipe_keys()) {
    EXPECT_TRUE(known.insert(key).second) << key;
    meanings[key] = meaning;
  }
  EXPECT_EQ(known, expected);
  EXPECT_THAT(meanings["data.name"], testing::StartsWith("dataset; one of"));
  // A key of two tasks says what it is in each of them.
  EXPECT_THAT(meanings["model.width"], testing::AllOf(testing::StartsWith("fashion-mnist: "),
                                                      testing::HasSubstr("(default 16); text: ")));
}

TEST(Tasks, AnUnknownOneIsRefused) {
  Recipe recipe;
  recipe.data.name = "mnist-fashion";
  EXPECT_THAT([&] { task_of(recipe); },
              testing::ThrowsMessage<UsageError>("data.name = mnist-fashion: there is no such task"));
}

TEST(Tasks, CopiesOfARecipeHaveKeysOfTheirOwn) {
  struct Keys {
    int width = 16;
  };
  Recipe recipe;
  keys_in<Keys>(recipe.task).width = 8;
  Recipe copy = recipe;
  keys_in<Keys>(copy.task).width = 24;
  EXPECT_EQ(keys_in<Keys>(std::as_const(recipe.task)).width, 8);
  EXPECT_EQ(keys_in<Keys>(std::as_const(copy.task)).width, 24);
  copy.task = std::string("of another task");
  EXPECT_EQ(keys_in<Keys>(std::as_const(copy.task)).width, 16);
  EXPECT_EQ(keys_in<Keys>(copy.task).width, 16);
}

TEST(Tasks, ScoresAreShownWithTheirUnit) {
  const ScoreInfo accuracy{.name = "accuracy", .percent = true};
  EXPECT_EQ(accuracy.text(0.87654), "87.65 %");
  EXPECT_EQ(accuracy.shown(0.5), 50);
  const ScoreInfo perplexity{.name = "perplexity", .higher_is_better = false};
  EXPECT_EQ(perplexity.text(18.417), "18.42");
  EXPECT_EQ(perplexity.shown(18.5), 18.5);
}

// Knows nothing, and tells which part of the test set it was asked for. Its score is the sum of the
// examples' numbers over their count, shifted by the worker's weight.
class CountingTask final : public Task {
 public:
  explicit CountingTask(std::int64_t examples) : examples_(examples), model_(1, 1) {}

  torch::nn::Module& model() override { return *model_; }
  const Deal& deal() const override { return deal_; }
  Batch batch(std::int64_t) override { return {at::ones({1, 1})}; }
  at::Tensor loss(const Batch& batch) override { return model_->forward(batch[0]).sum(); }
  std::int64_t test_examples() const override { return examples_; }
  Tally test(std::int64_t first, std::int64_t last) override {
    EXPECT_FALSE(model_->is_training());
    EXPECT_FALSE(c10::GradMode::is_enabled());
    Tally tally{.examples = last - first, .counts = {0, 0}};
    for (std::int64_t i = first; i < last; ++i) {
      tally.counts[0] += i;
      tally.counts[1] += 1;
      tally.loss += 0.5;
    }
    return tally;
  }
  Score score(const Tally& whole) const override {
    const auto mean = static_cast<double>(whole.counts[0]) / static_cast<double>(whole.counts[1]);
    return {mean + model_->weight.item<double>(), whole.loss / static_cast<double>(whole.examples)};
  }

 private:
  const Deal deal_{1, 1, {}};
  const std::int64_t examples_;
  torch::nn::Linear model_;
};

TEST(Evaluate, WorkersTestThePartsAndTheScoreIsOfTheWhole) {
  for (const std::int64_t examples : {1, 2, 10, 101}) {  // fewer than workers: some parts are empty
    flock(3, [&](int, World& world) {
      CountingTask task(examples);
      Optimizer optimizer(task.model(), SGD{.lr = 0}, {}, world);
      const AverageScore average = test_average(optimizer, task);
      const Score mine = test(task, world.log);
      EXPECT_NEAR(average.score.value, mine.value, 1e-6) << examples;  // averages are float
      EXPECT_NEAR(average.score.loss, 0.5, 1e-6);
      EXPECT_NEAR(average.consensus_distance, 0, 1e-6);
      EXPECT_TRUE(task.model().is_training());
    });
  }
}

TEST(Evaluate, TheWorstIsTheLowestOrTheHighest) {
  flock(3, [&](int rank, World& world) {
    CountingTask task(1);
    Optimizer optimizer(task.model(), SGD{.lr = 0}, {}, world);
    const auto worst = [&](const std::array<double, 3>& scores) {
      task.model().parameters()[0].detach().fill_(scores[static_cast<std::size_t>(rank)]);
      return std::pair(test_worst(optimizer, task, {.name = "accuracy"}),
                       test_worst(optimizer, task, {.name = "perplexity", .higher_is_better = false}));
    };
    EXPECT_EQ(worst({0.25, -1.5, 7.75}), std::pair(-1.5, 7.75));
    for (const double sign : {1, -1}) {
      const double nan = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
      EXPECT_THAT(worst({0.25, nan, 7.75}), testing::Pair(testing::IsNan(), testing::IsNan())) << sign;
    }
  });
}

}  // namespace
}  // namespace starling
