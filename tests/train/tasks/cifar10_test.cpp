#include <array>

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <torch/nn/module.h>

#include "starling/models/classifier.h"
#include "tests/refusal.h"
#include "tests/train/tasks/small_data.h"

namespace starling {
namespace {

using namespace testing_data;

class Cifar10Task : public TaskTest {
 protected:
  Cifar10Task() : TaskTest(small_data_of("cifar-10")) {}
};

TEST_F(Cifar10Task, KeysDecide) {
  const at::Tensor usual = task(recipe())->batch(0)[0];
  EXPECT_EQ(usual.sizes(), (std::vector<std::int64_t>{5, 3, 32, 32}));
  const auto differs = [&](const Overrides& keys) {
    return !at::equal(task(recipe(keys))->batch(0)[0], usual);
  };
  EXPECT_TRUE(differs({{"data.pad", "2"}}));
  EXPECT_TRUE(differs({{"data.flip", "false"}}));
  const auto of_two = [&](const std::string& split) {
    return task(recipe({{"data.split", split}}), 0, 2)->batch(0)[1];
  };
  EXPECT_FALSE(at::equal(of_two("whole"), of_two("iid")));
  // The shifts are others in the next epoch.
  const auto mine = task(recipe({{"train.batch", "60"}}));
  EXPECT_NE(mine->batch(0)[0].sum().item<std::int64_t>(), mine->batch(1)[0].sum().item<std::int64_t>());
}

TEST_F(Cifar10Task, TheNetworkHasTenClassesAndASmallFirstLayer) {
  const auto mine = task(recipe());
  const auto parameters = mine->model().named_parameters();
  EXPECT_EQ(parameters["conv1.weight"].sizes(), (std::vector<std::int64_t>{64, 3, 3, 3}));
  EXPECT_EQ(parameters["fc.weight"].sizes(), (std::vector<std::int64_t>{10, 512}));
  EXPECT_GT(task(recipe({{"model.depth", "34"}}))->model().parameters().size(), parameters.size());
  EXPECT_EQ(parameters["layer1.0.bn2.weight"].abs().sum().item<double>(), 0);
  EXPECT_EQ(task(recipe({{"model.zero_init", "false"}}))
                ->model()
                .named_parameters()["layer1.0.bn2.weight"]
                .sum()
                .item<double>(),
            64);
}

TEST_F(Cifar10Task, LossIsThatOfNormalizedColours) {
  const auto mine = task(recipe());
  const c10::AutoGradMode no_gradient(false);
  mine->model().eval();
  const Batch batch = mine->batch(0);
  at::Tensor images = batch[0].to(at::kDouble) / 255;
  const std::array mean{0.4914, 0.4822, 0.4465}, deviation{0.2023, 0.1994, 0.2010};
  for (std::size_t c = 0; c < 3; ++c)
    images.select(1, static_cast<std::int64_t>(c)).sub_(mean[c]).div_(deviation[c]);
  const at::Tensor logs =
      dynamic_cast<Classifier&>(mine->model()).forward(images.to(at::kFloat)).log_softmax(1);
  double expected = 0;
  for (int i = 0; i < 5; ++i) expected -= logs[i][batch[1][i].item<std::int64_t>()].item<double>();
  EXPECT_NEAR(mine->loss(batch).item<double>(), expected / 5, 1e-5);
}

TEST_F(Cifar10Task, RefusesInOneLine) {
  const auto refused = [&](const Overrides& keys) { return refusal<Error>([&] { task(recipe(keys)); }); };
  EXPECT_EQ(refused({{"data.dir", ""}}),
            "data.dir is not set: the folder of data_batch_1.bin to data_batch_5.bin and test_batch.bin");
  EXPECT_THAT(refused({{"data.dir", "/nowhere"}}),
              testing::StartsWith("/nowhere/data_batch_1.bin: not there"));
  Recipe mine = recipe({{"model.depth", "20"}}), copy = mine;
  EXPECT_EQ(refusal<UsageError>([&] { task_of(mine).check(mine, recipe_config(copy)); }),
            "default: model.depth = 20: wants 18, 34, 50 or 101");
}

}  // namespace
}  // namespace starling
