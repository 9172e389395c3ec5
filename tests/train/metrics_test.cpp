#include "starling/train/metrics.h"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include "starling/core/error.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

class MetricsTest : public testing::Test {
 protected:
  MetricsTest() { fs::remove_all(folder_); }
  ~MetricsTest() override { fs::remove_all(folder_); }

  std::vector<nlohmann::json> lines() const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(folder_ / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  const fs::path folder_ = fs::temp_directory_path() / "starling-metrics-test" / "deep";
};

TEST_F(MetricsTest, WritersOfOneFileKeepTheirLinesWhole) {
  constexpr int kWriters = 4;
  constexpr int kLines = 500;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWriters; ++rank) {
    threads.emplace_back([this, rank] {
      Metrics metrics(folder_);
      for (int step = 1; step <= kLines; ++step) metrics.write({.rank = rank, .step = step, .loss = 0.5});
    });
  }
  for (std::thread& thread : threads) thread.join();
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
  Metrics next(folder_);
  next.clear();
  EXPECT_EQ(lines().size(), 0u);
  EXPECT_FALSE(fs::exists(folder_ / "summary.json"));
  metrics.write({.step = 2});  // an opened file goes on at the new end
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_EQ(lines()[0]["step"], 2);
}

TEST_F(MetricsTest, SummaryHoldsWhatTheCommandPromises) {
  Metrics metrics(folder_);
  Summary summary;
  summary.workers = 4;
  summary.score_name = "accuracy";
  summary.score = 0.9;
  summary.consensus_distance = NAN;
  metrics.write(summary);
  std::ifstream file(folder_ / "summary.json");
  const auto json = nlohmann::json::parse(file);
  for (const char* key : {"scheme", "schedule", "rule", "wire", "one_in", "workers", "workers_lost", "steps",
                          "samples", "seconds", "loss", "accuracy", "worst_accuracy", "consensus_distance",
                          "bytes_sent_per_worker", "waiting_share", "seed", "versions"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["accuracy"], 0.9);
  EXPECT_EQ(json["workers"], 4);
  EXPECT_TRUE(json["consensus_distance"].is_null());
  // No draft is left.
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2);
}

TEST_F(MetricsTest, NamesTheFileThatCannotBeWritten) {
  fs::create_directories(folder_.parent_path());
  std::ofstream(folder_) << "a file in the way";
  try {
    Metrics metrics(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::StartsWith(folder_.string() + ": cannot be made: "));
  }
  EXPECT_THAT([] { Metrics("/dev/null/x"); },
              testing::ThrowsMessage<Error>(testing::HasSubstr("Not a directory")));
}

TEST_F(MetricsTest, FoldersWhereItsFilesShouldBeAreNamed) {
  fs::create_directories(folder_ / "summary.json");
  Metrics metrics(folder_);
  const std::string summary = (folder_ / "summary.json").string();
  EXPECT_THAT([&] { metrics.clear(); },
              testing::ThrowsMessage<Error>(summary + ": cannot be removed: Is a directory"));
  EXPECT_THAT([&] { metrics.write(Summary()); },
              testing::ThrowsMessage<Error>(summary + ": cannot be written: Is a directory"));
  fs::remove(summary);
  const fs::path inner = folder_ / "inner";
  fs::create_directories(inner / "metrics.jsonl");
  EXPECT_THAT([&] { Metrics other(inner); },
              testing::ThrowsMessage<Error>((inner / "metrics.jsonl").string() +
                                            ": cannot be opened: Is a directory"));
}

TEST_F(MetricsTest, AFullDiskIsAnError) {
  Metrics metrics(folder_);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  rlimit none = before;
  none.rlim_cur = 0;
  setrlimit(RLIMIT_FSIZE, &none);
  std::string message = "no error";
  try {
    metrics.write({.step = 1});
  } catch (const Error& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_THAT(message, testing::HasSubstr("metrics.jsonl: cannot be written: File too large"));
}

}  // namespace
}  // namespace starling
