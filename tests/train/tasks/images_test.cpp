#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include "starling/models/classifier.h"
#include "starling/train/evaluate.h"
#include "tests/data/tar_files.h"
#include "tests/refusal.h"
#include "tests/train/tasks/small_data.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::HasSubstr;

class ImagesTask : public TaskTest {
 protected:
  ImagesTask() : TaskTest(small_data_of("images")) {}

  // Breaks off these images of the split.
  void damage(const std::string& split, int images, const std::vector<int>& broken) const {
    std::vector<LabelledJpeg> jpegs;
    for (int i = 0; i < images; ++i)
      jpegs.push_back(
          {static_cast<std::uint32_t>(i % 4), jpeg_bytes({.width = 40, .height = 30 + i, .seed = i})});
    for (const int i : broken) jpegs[static_cast<std::size_t>(i)].jpeg.resize(250);
    spill(folder_ / split + "-00000.shard", shard_bytes(jpegs, {"ant", "bee", "cat", "dog"}));
  }
};

TEST_F(ImagesTask, ABatchIsSquaresOfBytes) {
  const Batch batch = task(recipe({{"data.size", "24"}}))->batch(0);
  EXPECT_EQ(batch[0].sizes(), (std::vector<std::int64_t>{5, 3, 24, 24}));
  EXPECT_EQ(batch[0].scalar_type(), at::kByte);
  EXPECT_EQ(batch[1].sizes(), (std::vector<std::int64_t>{5}));
}

TEST_F(ImagesTask, KeysDecide) {
  const auto usual = task(recipe())->batch(0);
  const auto differs = [&](const Overrides& keys) {
    return !at::equal(task(recipe(keys))->batch(0)[0], usual[0]);
  };
  EXPECT_FALSE(differs({{"data.threads", "5"}}));
  EXPECT_TRUE(differs({{"data.area", "0.9"}}));
  EXPECT_TRUE(differs({{"data.flip", "false"}}));
  const auto of_two = [&](const std::string& split) {
    return task(recipe({{"data.split", split}}), 0, 2)->batch(0)[1];
  };
  EXPECT_FALSE(at::equal(of_two("whole"), of_two("iid")));
  // The parts of an image are others in the next epoch.
  const auto mine = task(recipe({{"train.batch", "60"}}));
  const auto first = mine->batch(0), second = mine->batch(1);
  EXPECT_NE(first[0].sum().item<std::int64_t>(), second[0].sum().item<std::int64_t>());
  EXPECT_EQ(first[1].sum().item<std::int64_t>(), second[1].sum().item<std::int64_t>());
}

TEST_F(ImagesTask, LossIsThatOfNormalizedColours) {
  const auto mine = task(recipe({{"model.label_smoothing", "0.1"}}));
  const c10::AutoGradMode no_gradient(false);
  mine->model().eval();
  const Batch batch = mine->batch(0);
  at::Tensor images = batch[0].to(at::kDouble) / 255;
  const double mean[] = {0.485, 0.456, 0.406}, deviation[] = {0.229, 0.224, 0.225};
  for (int c = 0; c < 3; ++c) images.select(1, c).sub_(mean[c]).div_(deviation[c]);
  const at::Tensor logs =
      dynamic_cast<Classifier&>(mine->model()).forward(images.to(at::kFloat)).log_softmax(1);
  double expected = 0;
  for (int i = 0; i < 5; ++i) {
    const auto label = batch[1][i].item<std::int64_t>();
    expected -= 0.9 * logs[i][label].item<double>() + 0.1 * logs[i].mean().item<double>();
  }
  EXPECT_NEAR(mine->loss(batch).item<double>(), expected / 5, 1e-5);
}

TEST_F(ImagesTask, LeavesBrokenImagesOutAndWarnsOnce) {
  damage("train", 60, {4, 17});
  damage("val", 23, {3, 22});
  const auto mine = task(recipe());
  std::int64_t images = 0;
  std::vector<std::string> warnings;
  for (std::int64_t k = 0; k < 2 * mine->batches_per_epoch(); ++k) {
    images += mine->batch(k)[0].size(0);
    for (const std::string& line : mine->warnings()) warnings.push_back(line);
  }
  EXPECT_EQ(images, 2 * 58);
  const std::string path = folder_ / "train-00000.shard";
  EXPECT_THAT(warnings,
              testing::UnorderedElementsAre(HasSubstr(path + ": image 4 (\"ant\"): broken JPEG: "),
                                            HasSubstr(path + ": image 17 (\"bee\"): broken JPEG: ")));
  EXPECT_THAT(warnings, testing::ElementsAre(testing::EndsWith("; it is left out (1 so far)"),
                                             testing::EndsWith("; it is left out (2 so far)")));

  const c10::AutoGradMode no_gradient(false);
  mine->model().eval();
  const Tally whole = mine->test(0, 23);
  EXPECT_EQ(whole.examples, 23);
  EXPECT_THAT(whole.counts, testing::ElementsAre(testing::Le(21), 2));
  EXPECT_EQ(mine->score(whole).value, static_cast<double>(whole.counts[0]) / 21);
  EXPECT_EQ(mine->score(whole).loss, whole.loss / 21);
  EXPECT_EQ(mine->warnings().size(), 2U);

  std::vector<std::string> said;
  const auto again = task(recipe());
  const Score score = test(*again, [&](Level, const std::string& line) { said.push_back(line); });
  EXPECT_EQ(score.value, mine->score(whole).value);
  EXPECT_EQ(said.size(), 2U);
}

TEST_F(ImagesTask, ReadsTarArchivesAsShards) {
  const Batch expected = task(recipe())->batch(0);
  const auto replace = [&](const std::string& split, int images) {
    std::vector<TarMember> members;
    for (int i = 0; i < images; ++i) {
      const std::string name = "image " + std::to_string(i);
      members.push_back({name + ".jpg", jpeg_bytes({.width = 40, .height = 30 + i, .seed = i})});
      members.push_back({name + ".cls", std::to_string(i % 4)});
    }
    std::filesystem::remove(folder_ / split + "-00000.shard");
    spill(folder_ / split + "-0.tar", tar_bytes(members));
  };
  replace("train", 60);
  EXPECT_EQ(refusal<Error>([&] { task(recipe()); }),
            folder_.path + ": the splits train and val have different classes");
  replace("val", 23);
  task_of(recipe()).find_data(recipe());
  const auto mine = task(recipe());
  EXPECT_EQ(mine->test_examples(), 23);
  const Batch batch = mine->batch(0);
  EXPECT_TRUE(at::equal(batch[0], expected[0]));
  EXPECT_TRUE(at::equal(batch[1], expected[1]));
  EXPECT_EQ(refusal<UsageError>([&] { task(recipe({{"model.classes", "3"}})); }),
            "model.classes = 3: " + folder_.path + " has the label 3, and the first one is 0");
}

TEST_F(ImagesTask, RefusesABatchWithNoWholeImage) {
  std::vector<int> all(60);
  for (int i = 0; i < 60; ++i) all[static_cast<std::size_t>(i)] = i;
  damage("train", 60, all);
  EXPECT_THAT(refusal<Error>([&] { task(recipe())->batch(0); }),
              testing::StartsWith("no image of a batch is whole: " + folder_ / "train-00000.shard: image "));
}

TEST_F(ImagesTask, RefusesInOneLine) {
  const auto refused = [&](const Overrides& keys) { return refusal<Error>([&] { task(recipe(keys)); }); };
  EXPECT_EQ(refused({{"data.dir", ""}}),
            "data.dir is not set: the folder of train-*.shard and val-*.shard, or train-*.tar and val-*.tar");
  EXPECT_EQ(refused({{"data.dir", "/nowhere"}}),
            "/nowhere/train-00000.shard: cannot be opened: No such file or directory");
  EXPECT_EQ(refused({{"model.classes", "1000"}}), "model.classes = 1000: " + folder_.path + " has 4 classes");
  const Recipe other = recipe({{"data.dir", "/nowhere"}});
  EXPECT_THAT(refusal<Error>([&] { task_of(other).find_data(other); }),
              HasSubstr("`starling pack images` makes shards"));

  const auto checked = [&](const Overrides& keys) {
    Recipe mine = recipe(keys), copy = mine;
    return refusal<UsageError>([&] { task_of(mine).check(mine, recipe_config(copy)); });
  };
  EXPECT_EQ(checked({{"model.depth", "20"}}), "default: model.depth = 20: wants 18, 34, 50 or 101");
  EXPECT_EQ(checked({{"data.test_side", "15"}}),
            "default: data.test_side = 15: wants at least 16, the size in a test");
  EXPECT_EQ(checked({{"data.test_side", "16"}}), "accepted");

  spill(folder_ / "val-00000.shard", shard_bytes({{0, "x"}}, {"ant", "bee", "cat", "eel"}));
  EXPECT_EQ(refused({}), folder_.path + ": the splits train and val have different classes");
}

}  // namespace
}  // namespace starling
