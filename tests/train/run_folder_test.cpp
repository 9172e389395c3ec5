#include "starling/train/run_folder.h"

#include <filesystem>
#include <limits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include "starling/train/metrics.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecipe =
    "[run]\nsteps = 4\n[data]\nname = \"pictures\"\n[mixing]\ntopology = \"auto\"\n";

class RunFolderTest : public testing::Test {
 protected:
  RunFolderTest() { spill(folder_ / "recipe.toml", kRecipe); }
  RunFolder read() const {
    return read_run_folder(folder_.path, {{"pictures", "accuracy"}, {"words", "bleu"}});
  }
  // The refusal, after the folder's path.
  std::string refused() const {
    const std::string said = refusal<UsageError>([&] { read(); });
    return said.starts_with(folder_.path) ? said.substr(folder_.path.size()) : said;
  }
  // The refusal of metrics.jsonl with this as its second line.
  std::string refused_line(const std::string& line) const {
    spill(folder_ / "metrics.jsonl", kLine + ("\n" + line) + "\n");
    return refused();
  }

  static constexpr const char* kLine =
      R"({"rank": 0, "step": 1, "seconds": 1, "loss": 2, "lr": 0.1, "waiting_share": 0, "bytes_sent": 10})";
  const Folder folder_;
};

std::vector<double> values_of(const RunCurve& curve, double RunPoint::* member = &RunPoint::value) {
  std::vector<double> values;
  for (const RunPoint& point : curve) values.push_back(point.*member);
  return values;
}

using testing::ElementsAre;

TEST_F(RunFolderTest, ReadsWhatTrainWrites) {
  Metrics metrics(folder_.path);
  metrics.write_chosen("ring", "so");
  metrics.write_recipe(kRecipe);
  for (const int step : {2, 4}) {
    metrics.write({.rank = 1,
                   .step = step,
                   .seconds = step * 2.0,
                   .loss = 3.0 / step,
                   .lr = 0.1,
                   .waiting_share = 0.5,
                   .bytes_sent = static_cast<std::uint64_t>(step) * 300});
    metrics.write({.rank = 0,
                   .step = step,
                   .seconds = step * 1.0,
                   .loss = 1.0 / step,
                   .lr = 0.3,
                   .waiting_share = 0.1,
                   .bytes_sent = static_cast<std::uint64_t>(step) * 100});
  }
  metrics.write_test({.step = 3,
                      .seconds = 3.5,
                      .test_loss = 0.7,
                      .score_name = "accuracy",
                      .score = 0.8,
                      .consensus_distance = 0.01});
  RunFolder run = read();
  EXPECT_FALSE(run.simulated);
  EXPECT_EQ(run.task, "pictures");
  EXPECT_EQ(run.topology, "ring");
  EXPECT_THAT(run.settings, ElementsAre(testing::Pair("workers", "2"), testing::Pair("run.steps", "4"),
                                        testing::Pair("data.name", "\"pictures\""),
                                        testing::Pair("mixing.topology", "\"auto\"")));
  EXPECT_THAT(values_of(run.loss), ElementsAre(1, 0.5));
  EXPECT_THAT(values_of(run.loss, &RunPoint::least), ElementsAre(0.5, 0.25));
  EXPECT_THAT(values_of(run.loss, &RunPoint::most), ElementsAre(1.5, 0.75));
  EXPECT_THAT(values_of(run.loss, &RunPoint::step), ElementsAre(2, 4));
  EXPECT_THAT(values_of(run.loss, &RunPoint::seconds), ElementsAre(3, 6));
  EXPECT_THAT(values_of(run.loss, &RunPoint::bytes), ElementsAre(400, 800));
  EXPECT_THAT(values_of(run.spread), ElementsAre(1, 0.5));
  EXPECT_THAT(values_of(run.lr), ElementsAre(0.2, 0.2));
  EXPECT_THAT(values_of(run.waiting_share), ElementsAre(0.3, 0.3));
  EXPECT_THAT(values_of(run.step_bytes), ElementsAre(200, 200));
  EXPECT_THAT(values_of(run.step_bytes, &RunPoint::most), ElementsAre(300, 300));
  EXPECT_THAT(values_of(run.score), ElementsAre(0.8));
  EXPECT_THAT(values_of(run.test_loss, &RunPoint::seconds), ElementsAre(3.5));
  EXPECT_THAT(values_of(run.consensus_distance, &RunPoint::bytes), ElementsAre(600));  // between 400 and 800
  EXPECT_THAT(run.distance, testing::IsEmpty());
  EXPECT_FALSE(run.end.finished);
  EXPECT_EQ(run.end.score, 0.8);
  EXPECT_EQ(run.end.worst_score, std::nullopt);
  EXPECT_EQ(run.end.seconds, 6);

  Summary summary;
  summary.schedule = "base-2";
  summary.workers = 3, summary.workers_lost = 1;
  summary.steps = 4, summary.seconds = 7;
  summary.score_name = "accuracy", summary.score = 0.9, summary.worst_score = 0.85;
  summary.bytes_sent_per_worker = 900;
  summary.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.write(summary);
  run = read();
  EXPECT_TRUE(run.end.finished);
  EXPECT_EQ(run.topology, "base-2");
  EXPECT_EQ(run.settings.front().second, "3");
  EXPECT_EQ(run.end.workers_lost, 1);
  EXPECT_EQ(run.end.loss, std::nullopt);
  EXPECT_EQ(run.end.worst_score, 0.85);
  EXPECT_EQ(run.end.bytes, 900);
}

TEST_F(RunFolderTest, AResumedRunCountsItsBytesAnew) {
  Metrics metrics(folder_.path);
  for (const auto& [step, bytes] : {std::pair{2, 200}, {4, 400}, {6, 100}, {8, 300}})
    metrics.write({.step = step, .seconds = 1.0 * step, .bytes_sent = static_cast<std::uint64_t>(bytes)});
  EXPECT_THAT(values_of(read().loss, &RunPoint::bytes), ElementsAre(200, 400, 500, 700));
  EXPECT_THAT(values_of(read().step_bytes), ElementsAre(100, 100, 50, 100));
  EXPECT_THAT(read().spread, testing::IsEmpty());  // of one worker
  // In a folder of its own, nobody knows from which step on the first line counts.
  spill(folder_ / "recipe.toml", std::string(kRecipe) + "[checkpoint]\nresume = \"elsewhere\"\n");
  EXPECT_THAT(values_of(read().step_bytes), ElementsAre(100, 50, 100));
}

TEST_F(RunFolderTest, AWorkerThatComesBackMayTakeEarlierStepsAgain) {
  Metrics metrics(folder_.path);
  for (const auto& [step, bytes] : {std::pair{2, 200}, {4, 400}, {6, 600}, {4, 50}, {6, 250}, {8, 450}})
    metrics.write({.step = step,
                   .seconds = 1.0 * step,
                   .loss = 1.0 / bytes,
                   .bytes_sent = static_cast<std::uint64_t>(bytes)});
  EXPECT_THAT(values_of(read().loss), ElementsAre(1.0 / 200, 1.0 / 400, 1.0 / 600, 1.0 / 450));
  EXPECT_THAT(values_of(read().loss, &RunPoint::bytes), ElementsAre(200, 400, 600, 1050));
  EXPECT_THAT(values_of(read().step_bytes), ElementsAre(100, 100, 100, 100));
}

TEST_F(RunFolderTest, AWorkerMayComeLater) {
  Metrics metrics(folder_.path);
  for (const int step : {2, 4, 6, 8}) {
    metrics.write({.rank = 0, .step = step, .bytes_sent = static_cast<std::uint64_t>(step) * 100});
    if (step > 4) metrics.write({.rank = 1, .step = step, .bytes_sent = step == 6 ? 50U : 250U});
  }
  EXPECT_THAT(values_of(read().step_bytes, &RunPoint::least), ElementsAre(100, 100, 100, 100));
  EXPECT_THAT(values_of(read().loss, &RunPoint::bytes), ElementsAre(200, 400, 325, 525));
}

TEST_F(RunFolderTest, ReadsWhatSimulateWrites) {
  spill(folder_ / "cluster.json", R"({"workers": 4, "gradient": 0.1})");
  spill(
      folder_ / "simulate.jsonl",
      R"({"seconds": 1, "gradients": 40, "bytes_sent": 800, "loss": 2, "loss_least": 1, "loss_most": 4, "lr": 0.1,)"
      R"( "waiting_share": 0.5, "test_loss": 3, "accuracy": 0.2, "consensus_distance": 0.1})"
      "\n"
      R"({"seconds": 4, "gradients": 80, "bytes_sent": 2400, "loss": 1, "loss_least": 1, "loss_most": 1, "lr": 0.2,)"
      R"( "waiting_share": 0.1, "test_loss": 2, "accuracy": 0.3, "consensus_distance": null})"
      "\n");
  const RunFolder run = read();
  EXPECT_TRUE(run.simulated && run.end.finished);
  EXPECT_EQ(run.settings.front(), (std::pair<std::string, std::string>("workers", "4")));
  EXPECT_EQ(run.settings.back(), (std::pair<std::string, std::string>("cluster.gradient", "0.1")));
  EXPECT_THAT(values_of(run.loss, &RunPoint::step), ElementsAre(10, 20));
  EXPECT_THAT(values_of(run.loss, &RunPoint::bytes), ElementsAre(200, 600));
  EXPECT_THAT(values_of(run.spread), ElementsAre(3, 0));
  EXPECT_THAT(values_of(run.step_bytes), ElementsAre(20, 40));
  EXPECT_THAT(values_of(run.consensus_distance), ElementsAre(0.1, testing::IsNan()));
  EXPECT_EQ(run.end.consensus_distance, std::nullopt);  // not the last one that was finite
  EXPECT_EQ(run.end.waiting_share, (0.5 * 1 + 0.1 * 3) / 4);
  EXPECT_EQ(run.end.score, 0.3);
  spill(folder_ / "metrics.jsonl", "");
  EXPECT_EQ(refused(), ": holds two runs, one in metrics.jsonl and one in simulate.jsonl");
}

TEST_F(RunFolderTest, ForeignFoldersAreRefused) {
  EXPECT_EQ(refused(),
            ": is no folder of a run: there is no metrics.jsonl of `starling train`, nor a simulate.jsonl");
  spill(folder_ / "metrics.jsonl", "");
  EXPECT_EQ(refused(), "/metrics.jsonl: there is no step of a run yet");
  spill(folder_ / "metrics.jsonl", kLine);
  EXPECT_EQ(values_of(read().loss), std::vector<double>{2});
  spill(folder_ / "recipe.toml", "[data]\nname = \"<tea>\"\n");
  EXPECT_EQ(refused(), "/recipe.toml: data.name is none of the known tasks: pictures, words");
  spill(folder_ / "recipe.toml", "[data\n");
  EXPECT_THAT(refused(), testing::StartsWith("/recipe.toml:1: not TOML: "));
  fs::remove(folder_ / "recipe.toml");
  EXPECT_EQ(refused(), "/recipe.toml: cannot be opened: No such file or directory");
  spill(folder_ / "recipe.toml", kRecipe);
  fs::remove(folder_ / "metrics.jsonl");
  fs::create_directory(folder_ / "metrics.jsonl");
  EXPECT_EQ(refused(), "/metrics.jsonl: is no file");
}

TEST_F(RunFolderTest, DamagedLinesAreNamed) {
  const auto with = [](std::string key, const std::string& value) {
    std::string line =
        R"({"rank": 0, "step": 2, "seconds": 1, "loss": 2, "lr": 0.1, "waiting_share": 0, "bytes_sent": 10})";
    key = "\"" + key + "\": ";
    const auto at = line.find(key) + key.size();
    return line.replace(at, line.find_first_of(",}", at) - at, value);
  };
  EXPECT_EQ(refused_line(with("loss", "2")), "accepted");
  EXPECT_EQ(refused_line(with("loss", "null")), "accepted");
  EXPECT_THAT(refused_line("{\"rank\": 0, \"st"), testing::StartsWith("/metrics.jsonl:2: not JSON: "));
  EXPECT_EQ(refused_line("[1]"), "/metrics.jsonl:2: it must contain one object, not an array");
  EXPECT_EQ(refused_line("{}"), "/metrics.jsonl:2: the key rank is missing");
  EXPECT_EQ(refused_line(with("loss", "\"2\"")),
            "/metrics.jsonl:2: loss must be a number from -1e100 to 1e100, or null");
  EXPECT_EQ(refused_line(with("rank", "-1")),
            "/metrics.jsonl:2: rank must be a whole number from 0 to 1048575");
  EXPECT_EQ(refused_line(with("step", "1.5")),
            "/metrics.jsonl:2: step must be a whole number from 1 to 1000000000000000");
  EXPECT_EQ(refused_line(with("step", "1")),
            "/metrics.jsonl:2: step 1 of rank 0 does not come after its step 1");
  EXPECT_EQ(refused_line(with("seconds", "-1")),
            "/metrics.jsonl:2: seconds must be a number from 0 to 1e100");
  EXPECT_EQ(refused_line(with("bytes_sent", "null")),
            "/metrics.jsonl:2: bytes_sent must be a number from 0 to 1e100");
  spill(folder_ / "metrics.jsonl", kLine);
  spill(folder_ / "tests.jsonl",
        "{\"step\": 1, \"seconds\": 1, \"bleu\": 1, \"test_loss\": 1, \"consensus_distance\": 0}\n");
  EXPECT_EQ(refused(), "/tests.jsonl:1: the key accuracy is missing");
  fs::remove(folder_ / "tests.jsonl");
  spill(folder_ / "summary.json", "{\n\"schedule\": 7}");
  EXPECT_EQ(refused(), "/summary.json:1: schedule must be a text");
}

}  // namespace
}  // namespace starling
