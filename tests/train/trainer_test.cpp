// train() in this process; train_test.py and seeing_test.py run it as a user does.
#include "starling/train/trainer.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>

#include "starling/train/metrics.h"
#include "tests/data/data_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    for (const char* set : {"train", "t10k"}) {
      constexpr std::uint32_t kImages = 20;
      const std::string path = folder_ / set;
      testing_data::write_gzip(
          path + "-images-idx3-ubyte.gz",
          testing_data::idx_bytes({kImages, 28, 28}, std::vector<std::uint8_t>(kImages * 28 * 28)));
      testing_data::write_gzip(path + "-labels-idx1-ubyte.gz",
                               testing_data::idx_bytes({kImages}, std::vector<std::uint8_t>(kImages)));
    }
  }

  Recipe recipe(const std::string& out, int steps) const {
    Recipe made;
    made.run.out = folder_ / out;
    made.run.steps = steps;
    made.train.batch = 2;
    made.log.every = 1;
    Config keys = recipe_config(made);
    keys.set("data.dir", folder_.path);
    keys.set("model.width", "8");
    return made;
  }
  // Ends after two steps.
  static void interrupt(const Recipe& mine) {
    int asked = 0;
    Observer observer;
    observer.interrupted = [&] { return ++asked == 3; };
    EXPECT_THROW(train(mine, World::alone(), observer), RunInterrupted);
  }

  const Folder folder_;
};

TEST_F(TrainerTest, AnInterruptedRunLeavesItsTimeline) {
  Recipe mine = recipe("out", 100);
  mine.log.timeline = true;
  interrupt(mine);

  const auto written = nlohmann::json::parse(slurp(folder_ / "out/timeline-0.json"));
  std::vector<int> steps;
  for (const auto& event : written["traceEvents"]) {
    if (event["name"] == "backward") steps.push_back(event["args"]["step"]);
  }
  EXPECT_THAT(steps, testing::ElementsAre(1, 2));
}

TEST_F(TrainerTest, KeepsTheLinesOfItsOwnEarlierPartAlone) {
  Recipe first = recipe("first", 4);
  first.checkpoint.every = 1;
  interrupt(first);
  const std::string choice = R"({"step":0,"topology":"ring","why":"so"})";
  struct Case {
    std::string out, resume;
    std::vector<int> steps;  // of the lines at the end
  };
  for (const Case& c : {Case{"other", "", {1, 2, 3, 4}}, Case{"other", "first", {3, 4}},
                        Case{"first", "first", {0, 1, 2, 3, 4}}}) {
    if (c.out == "other") train(recipe(c.out, 4), World::alone());
    const std::string lines = folder_ / (c.out + "/metrics.jsonl");
    spill(lines, choice + "\n" + slurp(lines));
    Recipe then = recipe(c.out, 4);
    if (!c.resume.empty()) then.checkpoint.resume = folder_ / (c.resume + "/checkpoints");
    train(then, World::alone());
    std::vector<int> steps;
    std::istringstream text(slurp(lines));
    for (std::string line; std::getline(text, line);) steps.push_back(nlohmann::json::parse(line)["step"]);
    EXPECT_EQ(steps, c.steps) << c.out << " goes on from " << c.resume;
  }
}

// Those that come later find it, whoever of the first ones has ended.
TEST_F(TrainerTest, EachWorkerNotesTheCheckpointThatItGoesOnFrom) {
  Recipe first = recipe("first", 4);
  first.checkpoint.every = 1;
  interrupt(first);
  const std::vector<World> worlds = World::threads(2);
  const auto goes_on = [&](int rank, const std::string& out) {
    Recipe then = recipe(out, 4);
    then.checkpoint.resume = folder_ / "first/checkpoints";
    then.checkpoint.workers = "copy";
    train(then, worlds[static_cast<std::size_t>(rank)]);
  };
  std::thread other([&] { goes_on(1, "b"); });
  goes_on(0, "a");
  other.join();
  for (const char* out : {"a", "b"}) EXPECT_EQ(Metrics::resumed(folder_ / out).step, 2) << out;
}

TEST_F(TrainerTest, ARunThatIsRefusedLeavesTheEarlierOne) {
  Recipe mine = recipe("out", 2);
  mine.checkpoint.every = 1;
  train(mine, World::alone());
  const auto files = [&] {
    std::vector<std::string> all;
    for (const char* name : {"metrics.jsonl", "tests.jsonl", "recipe.toml", "summary.json"})
      all.push_back(slurp(folder_ / (std::string("out/") + name)));
    return all;
  };
  const std::vector<std::string> before = files();
  EXPECT_THAT(before, testing::Not(testing::Contains("")));

  mine.checkpoint.resume = folder_ / "out/checkpoints";
  EXPECT_THAT(refusal<UsageError>([&] { train(mine, World::alone()); }),
              testing::HasSubstr("the run was done, there is nothing to resume"));
  EXPECT_EQ(files(), before);
  spill(folder_ / "train-labels-idx1-ubyte.gz", "damaged");
  for (const char* out : {"out", "new"})
    EXPECT_THAT(refusal([&] { train(recipe(out, 2), World::alone()); }),
                testing::HasSubstr("train-labels-idx1-ubyte.gz"));
  EXPECT_EQ(files(), before);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "new"));
}

TEST_F(TrainerTest, CountsSamplesExactly) {
  constexpr int kDone = (1 << 25) + 1;
  Recipe mine = recipe("out", kDone + 2);
  mine.checkpoint.every = 1;
  interrupt(mine);
  const std::string path = folder_ / "out/checkpoints/step-2/manifest.json";
  Manifest manifest = read_manifest(path);
  manifest.step = manifest.files.front().step = kDone;
  spill(path, to_json(manifest));
  mine.checkpoint.resume = folder_ / "out/checkpoints";
  EXPECT_EQ(train(mine, World::alone()).summary.samples, 2 * (kDone + 2));
}

}  // namespace
}  // namespace starling
