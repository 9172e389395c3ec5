#include "starling/train/metrics.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>

#include "starling/core/descriptor.h"
#include "tests/folder.h"
#include "tests/refusal.h"
#include "tests/threads.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

class MetricsTest : public testing::Test {
 protected:
  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  const Folder above_;
  const fs::path folder_ = above_ / "deep";
  std::vector<std::string> said_;
  const Log log_ = [this](Level, const std::string& message) { said_.push_back(message); };
};

TEST_F(MetricsTest, WritersOfOneFileKeepTheirLinesWhole) {
  constexpr int kWriters = 4;
  constexpr int kLines = 500;
  on_threads(kWriters, [this](int rank) {
    Metrics metrics(folder_);
    for (int step = 1; step <= kLines; ++step) metrics.write({.rank = rank, .step = step, .loss = 0.5});
  });
  std::vector<int> latest(kWriters, 0);
  for (const auto& line : lines()) EXPECT_EQ(line["step"], ++latest[line["rank"].get<int>()]);
  EXPECT_THAT(latest, testing::Each(kLines));
}

TEST_F(MetricsTest, LinesOfAsynchronousSchemesHaveTheirEdges) {
  Metrics metrics(folder_);
  metrics.write({.step = 1});
  metrics.write({.step = 2,
                 .gossip = StepRecord::Gossip{
                     .rate = 1.5,
                     .distance = 0.25,
                     .edges = {{3, 10, 2.5, 7, 0.25}, {4, 0, 0, 9, 0}},
                     .questions = {.asked = 12, .refused = 3, .unanswered = 2, .dropped = 1}}});
  metrics.write({.step = 3, .gossip = StepRecord::Gossip{}});
  ASSERT_EQ(lines().size(), 3U);
  EXPECT_FALSE(lines()[0].contains("rate") || lines()[0].contains("edges"));
  const nlohmann::json line = lines()[1];
  EXPECT_EQ(line["rate"], 1.5);
  EXPECT_EQ(line["distance"], 0.25);
  EXPECT_EQ(line["edges"], nlohmann::json::parse(R"([
      {"rank": 3, "averaged": 10, "gap": 2.5, "longest_gap": 7, "distance": 0.25},
      {"rank": 4, "averaged": 0, "gap": 0.0, "longest_gap": 9, "distance": 0.0}])"));
  EXPECT_EQ(line["questions"],
            nlohmann::json::parse(R"({"asked": 12, "refused": 3, "unanswered": 2, "dropped": 1})"));
  EXPECT_EQ(lines()[2]["edges"], nlohmann::json::array());  // alone
}

TEST_F(MetricsTest, ClearRemovesAnEarlierRun) {
  Metrics metrics(folder_);
  metrics.write({.step = 1});
  metrics.write(Summary{});
  EXPECT_EQ(lines().size(), 1u);
  EXPECT_TRUE(fs::exists(folder_ / "summary.json"));
  const auto simulated = {"simulate.jsonl", "cluster.json", "simulate.svg"};
  for (const char* name : simulated) spill(folder_ / name, "");
  Metrics next(folder_);
  next.clear_after({});
  EXPECT_EQ(lines().size(), 0u);
  EXPECT_FALSE(fs::exists(folder_ / "summary.json"));
  for (const char* name : simulated) EXPECT_FALSE(fs::exists(folder_ / name)) << name;
  metrics.write({.step = 2});  // an opened file goes on at the new end
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0]["step"], 2);
}

TEST_F(MetricsTest, HostsThatShareAFolderClearItOneAfterTheOther) {
  Metrics metrics(folder_);
  metrics.write({.step = 1});
  const Descriptor other(open((folder_ / "metrics.jsonl").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  on_threads(2, [&](int thread) {
    if (thread == 0) return Metrics(folder_).clear_after(std::vector<std::int64_t>{1});
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // without a lock it would be over
    metrics.write({.step = 2});
    ::flock(other.get(), LOCK_UN);
  });
  EXPECT_EQ(lines().size(), 1U);
}

TEST_F(MetricsTest, SummaryHoldsWhatTheCommandPromises) {
  Metrics metrics(folder_);
  Summary summary;
  summary.workers = 4;
  summary.score_name = "accuracy";
  summary.score = 0.9;
  summary.worst_score = 0.8;
  summary.consensus_distance = NAN;
  summary.class_counts = {{5, 0}, {1, 4}};
  metrics.write(summary);
  const auto json = nlohmann::json::parse(slurp(folder_ / "summary.json"));
  for (const char* key : {"scheme", "schedule", "rule", "wire", "one_in", "workers", "workers_lost", "steps",
                          "samples", "seconds", "loss", "accuracy", "worst_accuracy", "consensus_distance",
                          "bytes_sent_per_worker", "waiting_share", "blocks_jumped", "seed", "versions"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["accuracy"], 0.9);
  EXPECT_EQ(json["worst_accuracy"], 0.8);
  EXPECT_EQ(json["workers"], 4);
  EXPECT_EQ(json["class_counts"], (std::vector<std::vector<int>>{{5, 0}, {1, 4}}));
  summary.worst_score.reset(), summary.class_counts.clear();
  const auto without = nlohmann::json::parse(to_json(summary));
  EXPECT_FALSE(without.contains("worst_accuracy"));
  EXPECT_FALSE(without.contains("class_counts"));
  EXPECT_TRUE(json["consensus_distance"].is_null());
  // No draft is left.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
}

TEST_F(MetricsTest, TestsAndTheRecipeHaveFilesOfTheirOwn) {
  Metrics metrics(folder_);
  metrics.write_recipe("[run]\n");
  for (const int step : {10, 20})
    metrics.write_test(
        {.step = step, .seconds = 0.5, .test_loss = 0.25, .score_name = "bleu", .score = step + 0.5});
  EXPECT_EQ(slurp(folder_ / "recipe.toml"), "[run]\n");
  EXPECT_EQ(slurp(folder_ / "tests.jsonl"),
            "{\"step\":10,\"seconds\":0.5,\"test_loss\":0.25,\"bleu\":10.5,\"consensus_distance\":0.0}\n"
            "{\"step\":20,\"seconds\":0.5,\"test_loss\":0.25,\"bleu\":20.5,\"consensus_distance\":0.0}\n");
  metrics.clear_after(std::vector<std::int64_t>{10, 30});  // worker 0's steps count
  EXPECT_EQ(std::ranges::count(slurp(folder_ / "tests.jsonl"), '\n'), 1);
  EXPECT_FALSE(fs::exists(folder_ / "recipe.toml"));
  metrics.clear_after({});
  EXPECT_FALSE(fs::exists(folder_ / "tests.jsonl"));
}

TEST_F(MetricsTest, NamesTheFileThatCannotBeWritten) {
  spill(folder_, "a file in the way");
  EXPECT_THAT(refusal([&] { Metrics metrics(folder_); }),
              testing::StartsWith(folder_.string() + ": cannot be made: "));
  EXPECT_THAT([] { Metrics("/dev/null/x"); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("Not a directory")));
}

TEST_F(MetricsTest, FoldersWhereItsFilesShouldBeAreNamed) {
  fs::create_directories(folder_ / "summary.json");
  Metrics metrics(folder_, log_);
  const std::string summary = (folder_ / "summary.json").string();
  EXPECT_THAT([&] { metrics.clear_after({}); },
              testing::ThrowsMessage<Error>(summary + ": cannot be removed: Is a directory"));
  metrics.write(Summary());
  const std::string tests = (folder_ / "tests.jsonl").string();
  fs::create_directories(tests);
  metrics.write_test({.step = 1, .score_name = "bleu"});
  EXPECT_THAT(said_, testing::ElementsAre(summary + ": cannot be written: Is a directory",
                                          tests + ": cannot be written: Is a directory"));
  fs::remove(summary);
  const fs::path inner = folder_ / "inner";
  fs::create_directories(inner / "metrics.jsonl");
  EXPECT_THAT([&] { Metrics other(inner); },
              testing::ThrowsMessage<Error>((inner / "metrics.jsonl").string() +
                                            ": cannot be opened: Is a directory"));
}

TEST_F(MetricsTest, AFullDiskCostsLinesAndOneWarning) {
  Metrics metrics(folder_, log_);
  metrics.write({.step = 1});
  {
    const FullDisk full(fs::file_size(folder_ / "metrics.jsonl") + 20);  // cuts the next line off
    for (int step = 2; step < 5; ++step) metrics.write({.step = step});
    metrics.write(Summary());
    metrics.write_test({.step = 1, .score_name = std::string(4096, 'x')});
  }
  ASSERT_EQ(said_.size(), 3U);
  EXPECT_THAT(said_[0], testing::HasSubstr("metrics.jsonl: cannot be written: "));
  EXPECT_THAT(said_[0], testing::HasSubstr("lines are missing from here on, the run goes on"));
  EXPECT_THAT(said_[1], testing::HasSubstr("summary.json: cannot be written: "));
  EXPECT_THAT(said_[2], testing::HasSubstr("tests.jsonl: cannot be written: "));
  EXPECT_EQ(slurp(folder_ / "tests.jsonl"), "");
  EXPECT_FALSE(fs::exists(folder_ / "summary.json"));
  metrics.write({.step = 5});
  metrics.write(Summary());
  EXPECT_TRUE(fs::exists(folder_ / "summary.json"));
  std::ifstream file(folder_ / "metrics.jsonl");
  std::vector<std::string> all;
  for (std::string line; std::getline(file, line);) all.push_back(line);
  ASSERT_EQ(all.size(), 3U);  // the part of a line stands alone
  EXPECT_EQ(nlohmann::json::parse(all[2])["step"], 5);
  // A resumed run drops it.
  Metrics(folder_, log_).clear_after(std::vector<std::int64_t>{9});
  EXPECT_THAT(said_.back(), testing::EndsWith("metrics.jsonl:2: is no line of a run, and is dropped"));
  EXPECT_EQ(lines().size(), 2U);
}

TEST_F(MetricsTest, AFullDiskAtAResumeCostsNoEarlierLines) {
  {
    Metrics metrics(folder_);
    for (int step = 1; step < 9; ++step) {
      metrics.write({.step = step});
      metrics.write_test({.step = step, .score_name = "bleu"});
    }
  }
  const std::string before = slurp(folder_ / "metrics.jsonl"), tests = slurp(folder_ / "tests.jsonl");
  Metrics metrics(folder_, log_);
  {
    const FullDisk full(100);
    metrics.clear_after(std::vector<std::int64_t>{8});
  }
  EXPECT_EQ(slurp(folder_ / "metrics.jsonl"), before);
  EXPECT_EQ(slurp(folder_ / "tests.jsonl"), tests);
  EXPECT_THAT(said_, testing::ElementsAre(testing::HasSubstr("metrics.jsonl: cannot be written"),
                                          testing::HasSubstr("tests.jsonl: cannot be written")));
  metrics.clear_after(std::vector<std::int64_t>{3});
  EXPECT_EQ(lines().size(), 3U);
}

TEST_F(MetricsTest, LinesOfOtherTypesAreDroppedWithAWarning) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "metrics.jsonl") << R"({"step": 0, "topology": "ring", "why": "so"}
{"rank": 0, "step": 1}
{"rank": "0", "step": 1}
{"rank": 1, "step": [1]}
{"rank": 1.5, "step": 1}
{"rank": -1, "step": 1}
{"rank": 1, "step": 3}
{"rank": 1, "step": 2}
[1]
)" << std::string(100'000, '[') << "\n";
  Metrics metrics(folder_, log_);
  metrics.clear_after(std::vector<std::int64_t>{2, 2});
  const std::string path = (folder_ / "metrics.jsonl").string(),
                    end = ": is no line of a run, and is dropped";
  EXPECT_THAT(said_, testing::ElementsAre(path + ":3" + end, path + ":4" + end, path + ":5" + end,
                                          path + ":9" + end, path + ":10" + end));
  ASSERT_EQ(lines().size(), 3U);
  EXPECT_EQ(lines()[2]["step"], 2);
}

TEST_F(MetricsTest, FindsTheLatestSeconds) {
  const Metrics metrics(folder_);
  const std::string line = R"({"rank":0,"step":1,"seconds":2.5})",
                    later = R"({"rank":1,"step":1,"seconds":3})";
  for (const auto& [text, seconds] : std::map<std::string, double>{
           {"", 0},
           {"{\"step\":0,\"topology\":\"ring\"}\n", 0},
           {line + "\n" + later + "\n" + line + "\n", 3},
           {line + "\n" + later.substr(0, 20), 2.5},                       // is being written
           {later + std::string(1 << 20, ' ') + "\n" + line + "\n", 2.5},  // begins before the end
           {"[3]\n{\"seconds\":\"7\"}\n" + line, 2.5}}) {
    spill(folder_ / "metrics.jsonl", text);
    EXPECT_EQ(metrics.latest_seconds(), seconds) << text.substr(0, 100);
  }
}

TEST_F(MetricsTest, NamesNeedNotBeUtf8) {
  Metrics metrics(folder_, log_);
  metrics.write_chosen("caf\xe9.toml", "so");
  Summary summary;
  summary.scheme = "\xff";
  metrics.write(summary);
  EXPECT_EQ(lines().size(), 1U);
}

}  // namespace
}  // namespace starling
