// train() in this process; train_test.py and seeing_test.py run it as a user does.
#include "starling/train/trainer.h"

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>

#include "tests/data/data_files.h"

namespace starling {
namespace {

TEST(Trainer, AnInterruptedRunLeavesItsTimeline) {
  const Folder folder;
  for (const char* set : {"train", "t10k"}) {
    constexpr std::uint32_t kImages = 20;
    const std::string path = folder / set;
    testing_data::write_gzip(
        path + "-images-idx3-ubyte.gz",
        testing_data::idx_bytes({kImages, 28, 28}, std::vector<std::uint8_t>(kImages * 28 * 28)));
    testing_data::write_gzip(path + "-labels-idx1-ubyte.gz",
                             testing_data::idx_bytes({kImages}, std::vector<std::uint8_t>(kImages)));
  }
  Recipe recipe;
  recipe.run.out = folder / "out";
  recipe.run.steps = 100;
  recipe.train.batch = 2;
  recipe.log.timeline = true;
  Config keys = recipe_config(recipe);
  keys.set("data.dir", folder.path);
  keys.set("model.width", "8");
  int asked = 0;
  Observer observer;
  observer.interrupted = [&] { return ++asked == 3; };
  EXPECT_THROW(train(recipe, World::alone(), observer), RunInterrupted);

  const auto written = nlohmann::json::parse(slurp(folder / "out/timeline-0.json"));
  std::vector<int> steps;
  for (const auto& event : written["traceEvents"]) {
    if (event["name"] == "backward") steps.push_back(event["args"]["step"]);
  }
  EXPECT_THAT(steps, testing::ElementsAre(1, 2));
}

}  // namespace
}  // namespace starling
