#include "starling/core/timeline.h"

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include <gmock/gmock.h>

#include "starling/core/error.h"
#include "tests/folder.h"
#include "tests/threads.h"

namespace starling {
namespace {

using nlohmann::json;
using std::chrono::microseconds;
using testing::ElementsAre;

class TimelineTest : public testing::Test {
 protected:
  json written(const Timeline& timeline) {
    timeline.write(path_);
    return json::parse(slurp(path_));
  }
  static std::vector<json> spans(const json& file) {
    std::vector<json> spans;
    for (const json& event : file["traceEvents"]) {
      if (event["ph"] == "X") spans.push_back(event);
    }
    return spans;
  }

  const Folder folder_;
  const std::string path_ = folder_ / "timeline.json";
};

TEST_F(TimelineTest, AScopeIsASpanOfItsStep) {
  Timeline timeline(2, 3);
  timeline.step(7);
  {
    const Timeline::Scope outer(&timeline, {.name = "outer"});
    timeline.step(8);  // a span belongs to the step of its begin
    Timeline::Scope inner(&timeline, {.name = "inner", .block = 4, .peer = 1, .round = 9});
    inner.outcome("committed");
  }
  const json file = written(timeline);
  EXPECT_EQ(file["otherData"]["rank"], 2);
  EXPECT_EQ(file["otherData"]["workers"], 3);
  EXPECT_EQ(file["otherData"]["dropped"], 0);
  const auto found = spans(file);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0]["name"], "outer");
  EXPECT_EQ(found[0]["pid"], 2);
  EXPECT_EQ(found[0]["args"], json({{"step", 7}}));
  EXPECT_EQ(found[1]["name"], "inner");
  EXPECT_EQ(found[1]["args"], json({{"peer", 1}, {"round", 9}, {"block", 4}, {"outcome", "committed"}}));
  EXPECT_NE(found[0]["tid"], found[1]["tid"]);
}

TEST_F(TimelineTest, WithoutATimelineAScopeDoesNothing) {
  const Timeline::Scope none(nullptr, {.name = "nothing"});
}

TEST_F(TimelineTest, TimesAreMicrosecondsToTheNanosecond) {
  Timeline timeline(0, 1);
  const Time begin = Clock::now();
  const std::chrono::nanoseconds length(1'234'567'089);
  timeline.add({.name = "a", .begin = begin, .end = begin + length});
  timeline.add({.name = "b", .begin = begin + length, .end = begin + 2 * length});
  const auto found = spans(written(timeline));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0]["dur"], 1234567.089);
  EXPECT_GE(found[0]["ts"], 0);
  EXPECT_NEAR(found[1]["ts"].get<double>() - found[0]["ts"].get<double>(), 1234567.089, 1e-4);
}

TEST_F(TimelineTest, OverlappingSwapsWithOnePeerHaveLanesOfTheirOwn) {
  Timeline timeline(0, 3);
  const Time start = Clock::now();
  const auto swap = [&](int peer, int block, int begin, int end) {
    timeline.add({.name = "exchange",
                  .block = block,
                  .peer = peer,
                  .begin = start + microseconds(begin),
                  .end = start + microseconds(end)});
  };
  swap(1, 0, 0, 10);
  swap(1, 1, 5, 30);
  swap(1, 2, 6, 8);
  swap(1, 0, 10, 20);  // touches the first one
  swap(2, 0, 7, 9);
  const json file = written(timeline);
  std::map<std::pair<int, int>, std::vector<int>> threads;  // by peer and block
  for (const json& span : spans(file))
    threads[{span["args"]["peer"], span["args"]["block"]}].push_back(span["tid"]);
  EXPECT_EQ((threads[{1, 0}][0]), (threads[{1, 0}][1]));
  const std::set<int> different{threads[{1, 0}][0], threads[{1, 1}][0], threads[{1, 2}][0],
                                threads[{2, 0}][0]};
  EXPECT_EQ(different.size(), 4U);
  std::map<int, std::string> names;
  for (const json& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
  }
  EXPECT_EQ((names[threads[{1, 2}][0]]), "exchange with worker 1");
  EXPECT_EQ((names[threads[{2, 0}][0]]), "exchange with worker 2");
}

TEST_F(TimelineTest, PointsAreCurves) {
  Timeline timeline(1, 3, {.from = 1, .to = 1, .most = 3});
  timeline.add({.name = "rate", .value = 9});  // in step 0
  timeline.step(1);
  timeline.add({.name = "rate", .value = 0.5});
  timeline.add({.name = "distance", .peer = 2, .value = 1e-9});
  timeline.add({.name = "rate", .value = std::numeric_limits<double>::quiet_NaN()});
  {
    const Timeline::Scope span(&timeline, {.name = "forward"});
  }
  timeline.add({.name = "rate", .value = 1});  // it is full
  EXPECT_EQ(timeline.dropped(), 1U);
  const json file = written(timeline);
  std::vector<json> points;
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "C") points.push_back(event);
  }
  ASSERT_EQ(points.size(), 2U);
  EXPECT_EQ(points[0]["name"], "rate");
  EXPECT_EQ(points[0]["args"]["value"], 0.5);
  EXPECT_EQ(points[1]["name"], "distance, worker 2");
  EXPECT_EQ(points[1]["args"]["value"], 1e-9);
  EXPECT_EQ(points[1]["pid"], 1);
  EXPECT_GE(points[1]["ts"], points[0]["ts"]);
}

TEST_F(TimelineTest, OnlyTheStepsAskedForAreKept) {
  Timeline timeline(0, 1, {.from = 2, .to = 3});
  for (int step = 1; step <= 5; ++step) {
    timeline.step(step);
    const Timeline::Scope span(&timeline, {.name = "forward"});
  }
  std::vector<int> steps;
  for (const json& span : spans(written(timeline))) steps.push_back(span["args"]["step"]);
  EXPECT_THAT(steps, ElementsAre(2, 3));
  EXPECT_EQ(timeline.dropped(), 0U);
}

TEST_F(TimelineTest, AFullOneCountsWhatItDrops) {
  Timeline timeline(0, 1, {.most = 100});
  on_threads(4, [&](int) {
    for (int i = 0; i < 50; ++i) const Timeline::Scope span(&timeline, {.name = "s"});
  });
  EXPECT_EQ(timeline.dropped(), 100U);
  const json file = written(timeline);
  EXPECT_EQ(spans(file).size(), 100U);
  EXPECT_EQ(file["otherData"]["dropped"], 100);
}

TEST_F(TimelineTest, AnEmptyOneIsAFileToo) { EXPECT_EQ(spans(written(Timeline(0, 1))).size(), 0U); }

TEST_F(TimelineTest, NamesTheFileThatCannotBeWritten) {
  const Timeline timeline(0, 1);
  EXPECT_THAT([&] { timeline.write("/nowhere/timeline-0.json"); },
              testing::ThrowsMessage<Error>(
                  "/nowhere/timeline-0.json: cannot be written: No such file or directory"));
  EXPECT_THAT([&] { timeline.write("/dev/full"); },
              testing::ThrowsMessage<Error>("/dev/full: cannot be written: No space left on device"));
}

}  // namespace
}  // namespace starling
