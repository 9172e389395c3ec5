#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include "starling/models/beam_search.h"
#include "starling/models/bleu.h"
#include "tests/refusal.h"
#include "tests/train/tasks/small_data.h"

namespace starling {
namespace {

using namespace testing_data;

class TranslationTask : public TaskTest {
 protected:
  TranslationTask() : TaskTest(small_data_of("translation")) {}

  static Transformer& transformer(Task& task) { return dynamic_cast<Transformer&>(task.model()); }
  // Then another token is always likelier than the end.
  static void never_end(Task& task) {
    const c10::AutoGradMode no_gradient(false);
    task.model().named_parameters()["embedding.weight"][Transformer::kEnd].zero_();
  }
};

TEST_F(TranslationTask, ABatchIsPairsWithTheirEndAndPadding) {
  spill(folder_ / "train.pairs", pair_bytes({{{5, 6, 7}, {8}}, {{9, 4}, {5, 6, 7}}}));
  const Batch batch = task(recipe({{"train.batch", "8"}}))->batch(0);
  const int first = batch[0][0][0].item<int>() == 5 ? 0 : 1;  // the order is by chance
  const auto row = [&](int side, int which) {
    const at::Tensor tokens = batch[static_cast<std::size_t>(side)][(which + first) % 2];
    const auto* data = tokens.data_ptr<std::int64_t>();
    return std::vector<std::int64_t>(data, data + tokens.size(0));
  };
  EXPECT_THAT(row(0, 0), testing::ElementsAre(5, 6, 7, 1));
  EXPECT_THAT(row(1, 0), testing::ElementsAre(8, 1, 0, 0));
  EXPECT_THAT(row(0, 1), testing::ElementsAre(9, 4, 1, 0));
  EXPECT_THAT(row(1, 1), testing::ElementsAre(5, 6, 7, 1));
}

TEST_F(TranslationTask, LossIsSmoothedAndFollowsFromTheBatchDropoutIncluded) {
  const auto mine = task(recipe({{"model.dropout", "0.3"}, {"model.smoothing", "0.2"}}));
  const Batch batch = mine->batch(0);
  const at::Tensor loss = mine->loss(batch);
  at::randn({3});  // of the global generator
  EXPECT_TRUE(at::equal(mine->loss(batch), loss));
  Batch other = batch;
  other[2] = mine->batch(1)[2];
  EXPECT_FALSE(at::equal(mine->loss(other), loss));
  mine->model().eval();
  EXPECT_TRUE(at::equal(mine->loss(batch), transformer(*mine).loss(batch[0], batch[1], 0.2)));
  EXPECT_FALSE(at::equal(mine->loss(batch), transformer(*mine).loss(batch[0], batch[1], 0.1)));
}

TEST_F(TranslationTask, ScoreIsBleuOfGreedyTranslationsAndTheLossOfATokenWithoutSmoothing) {
  std::vector<Pair> pairs;
  for (std::int64_t i = 2; i < 12; ++i)
    pairs.push_back({std::vector<std::int64_t>(static_cast<std::size_t>(i), i), {i, 3}});
  const auto start = task(recipe());
  never_end(*start);
  Transformer& model = transformer(*start);
  model.eval();
  const c10::AutoGradMode no_gradient(false);
  // The references of the first five are what the model says.
  const auto source = [](const Pair& pair) {
    at::Tensor row = at::ones({1, std::ssize(pair.source) + 1}, at::kLong);
    for (std::size_t i = 0; i < pair.source.size(); ++i) row[0][static_cast<int>(i)] = pair.source[i];
    return row;
  };
  std::vector<std::int64_t> counts(kBleuCounts);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto translation = translate(model, source(pairs[i]), {.beams = 1})[0];
    ASSERT_GT(translation.size(), 4U);
    if (i < 5) pairs[i].target = translation;
    count_bleu(translation, pairs[i].target, counts);
  }
  spill(folder_ / "val.pairs", pair_bytes(pairs));
  const auto mine = task(recipe({{"train.batch", "100"}}));  // the same weights
  never_end(*mine);
  mine->model().eval();
  const Score score = mine->score(mine->test(0, 10));
  EXPECT_EQ(score.value, bleu(counts));
  EXPECT_GT(score.value, 0.1);
  EXPECT_LT(score.value, 1);
  double loss = 0;
  std::int64_t tokens = 0;
  for (const Pair& pair : pairs) {
    at::Tensor target = at::ones({1, std::ssize(pair.target) + 1}, at::kLong);
    for (std::size_t i = 0; i < pair.target.size(); ++i) target[0][static_cast<int>(i)] = pair.target[i];
    loss += model.loss(source(pair), target, 0, at::Reduction::Sum).item<double>();
    tokens += target.size(1);
  }
  EXPECT_NEAR(score.loss, loss / static_cast<double>(tokens), 1e-5);
  EXPECT_EQ(task(recipe({{"data.test_limit", "4"}}))->test_examples(), 4);
}

TEST_F(TranslationTask, RefusesInOneLine) {
  const auto refused = [&](const Overrides& keys) { return refusal<Error>([&] { task(recipe(keys)); }); };
  EXPECT_EQ(refused({{"data.dir", ""}}), "data.dir is not set: the folder of train.pairs and val.pairs");
  EXPECT_EQ(refused({{"data.dir", "/nowhere"}}),
            "/nowhere/train.pairs: cannot be opened: No such file or directory");
  EXPECT_EQ(refused({{"train.batch", "3"}}),
            "train.batch = 3: an example has 4 tokens, and a batch holds at least one");
  const std::string file = folder_ / "recipe.toml";
  spill(file, "[data]\nname = \"translation\"\n[model]\nwidth = 12\n");
  EXPECT_EQ(refusal<UsageError>([&] { read_recipe(file); }),
            file + ":4: model.width = 12: wants an even multiple of model.heads = 8");
}

}  // namespace
}  // namespace starling
