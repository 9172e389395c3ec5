#include "starling/train/timelines.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>

#include "starling/core/timeline.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

class TimelinesTest : public testing::Test {
 protected:
  std::string path(int rank) const { return folder_ / ("timeline-" + std::to_string(rank) + ".json"); }
  void record(int rank, int workers) const {
    Timeline timeline(rank, workers);
    for (int i = 0; i < 2; ++i) const Timeline::Scope span(&timeline, {.name = "forward"});
    timeline.write(path(rank));
  }
  void merge() const { merge_timelines(folder_.path, folder_ / "timeline.json"); }
  std::string text(int rank) const { return slurp(path(rank)); }
  // The error, after its name, if worker 0's file has this text. Nothing may be left behind.
  std::string refusal(const std::string& damaged) const {
    spill(path(0), damaged);
    const std::string said = starling::refusal([&] { merge(); });
    EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path), fs::directory_iterator()), 2) << said;
    return said.starts_with(path(0)) ? said.substr(path(0).size()) : said;
  }

  const Folder folder_;
};

std::string replaced(std::string text, const std::string& what, const std::string& by) {
  const auto at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return at == std::string::npos ? text : text.replace(at, what.size(), by);
}

TEST_F(TimelinesTest, MergesWhatIsThere) {
  record(0, 3);
  record(2, 3);
  const MergedTimeline merged = merge_timelines(folder_.path, folder_ / "timeline.json");
  EXPECT_EQ(merged.workers, 3);
  EXPECT_THAT(merged.missing, testing::ElementsAre(1));
  EXPECT_EQ(merged.spans, 4);
  EXPECT_EQ(merged.dropped, 0);
}

TEST_F(TimelinesTest, MergesCurves) {
  Timeline timeline(0, 1);
  timeline.add({.name = "rate", .value = 0.25});
  timeline.write(path(0));
  EXPECT_EQ(merge_timelines(folder_.path, folder_ / "timeline.json").spans, 0);
  const std::string all = slurp(folder_ / "timeline.json");
  EXPECT_THAT(all, testing::HasSubstr(R"("name":"rate")"));
  EXPECT_THAT(all, testing::HasSubstr(R"("value":0.25)"));
}

TEST_F(TimelinesTest, RefusesEveryFileThatIsCutOff) {
  record(0, 2);
  record(1, 2);
  const std::string good = text(0);
  for (std::size_t length = 0; length < good.size(); ++length) {
    const std::string said = refusal(good.substr(0, length));
    EXPECT_THAT(said, testing::MatchesRegex(":[1-6]: is cut off: the file has no end")) << length;
  }
}

TEST_F(TimelinesTest, RefusesDamage) {
  record(0, 2);
  record(1, 2);
  const std::string good = text(0);  // head, two names, two spans, the end
  const std::string end = "\n]}\n";
  const std::string last =
      good.substr(good.rfind("{\"ph\""), good.size() - good.rfind("{\"ph\"") - end.size());
  EXPECT_EQ(refusal(good + "x"), ":6: something follows the end");
  EXPECT_EQ(refusal(replaced(good, last + end, last + "\n" + last + end)),
            ":6: a comma is missing at the end of the line before");
  for (const std::string& no_timeline :
       {std::string("{}\n"), std::string("[\n"), std::string(100, '\0') + "\n",
        replaced(good, "timeline-1", "timeline-9"), good.substr(1)}) {
    EXPECT_EQ(refusal(no_timeline), ":1: is no timeline of Starling");
  }
  EXPECT_EQ(refusal(replaced(good, "\"dropped\":0", "\"dropped\":-1")),
            ":1: its dropped is no number from 0 to 1000000000000");
  EXPECT_EQ(refusal(replaced(good, "\"start_unix_ns\":", "\"start\":")),
            ":1: its start_unix_ns is no number from 0 to 4000000000000000000");
  for (const char* workers : {"2147483647", "99999999999999999999", "0", "-1", "2.5", "\"2\""}) {
    EXPECT_EQ(refusal(replaced(good, "\"workers\":2", std::string("\"workers\":") + workers)),
              ":1: its workers is no number from 1 to 1048576")
        << workers;
  }
  EXPECT_EQ(refusal(text(1)), ":1: is of worker 1, not of the one in its name");
  for (const std::string& event :
       {replaced(last, "\"ts\":", "\"ts\":-"), replaced(last, "\"dur\":", "\"dur\":1e99,\"was\":"),
        replaced(last, "\"pid\":0", "\"pid\":1"), replaced(last, "\"ph\":\"X\"", "\"ph\":1,"),
        std::string("[1]"), std::string("{"), std::string(100'000, '['),
        replaced(last, "\"args\":{",
                 "\"args\":{\"deep\":" + std::string(100'000, '[') + std::string(100'000, ']') + ",")}) {
    EXPECT_EQ(refusal(replaced(good, last, event)), ":5: is no event of worker 0") << event.substr(0, 100);
  }
}

TEST_F(TimelinesTest, RefusesFilesOfDifferentRuns) {
  record(0, 2);
  record(1, 3);
  const auto merge = [&] { this->merge(); };
  EXPECT_THAT(merge, testing::ThrowsMessage<Error>(
                         path(1) + ":1: is of another run than timeline-0.json, which has 2 workers"));
  fs::remove(path(1));
  record(7, 2);
  EXPECT_THAT(merge, testing::ThrowsMessage<Error>(
                         path(7) + ":1: is of another run than timeline-0.json, which has 2 workers"));
}

}  // namespace
}  // namespace starling
