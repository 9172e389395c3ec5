#include "starling/train/progress.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Progress kStart{.step = 1,
                      .steps = 300,
                      .epoch = 0.01,
                      .epochs = 3,
                      .loss = 2.30259,
                      .samples_per_second = 2104.6,
                      .seconds_left = 75.4,
                      .waiting_share = 0.034};
constexpr const char* kStartText =
    "step 1/300  epoch 0.01/3  loss 2.3026  2105 samples/s  1:15 left  rank 0 waits 3 %";

TEST(Progress, Text) {
  EXPECT_EQ(progress_text(kStart), kStartText);
  Progress slow = kStart;
  slow.seconds_left = 7384;
  EXPECT_NE(progress_text(slow).find("2:03:04 left"), std::string::npos);
}

TEST(Progress, ANarrowTerminalShowsTheLeadingParts) {
  EXPECT_EQ(shortened(kStartText, 82), kStartText);
  EXPECT_EQ(shortened(kStartText, 81), "step 1/300  epoch 0.01/3  loss 2.3026  2105 samples/s  1:15 left");
  EXPECT_EQ(shortened(kStartText, 12), "step 1/300");
  EXPECT_EQ(shortened(kStartText, 10), "step 1/300");
  EXPECT_EQ(shortened(kStartText, 6), "step 1");
  EXPECT_EQ(shortened(kStartText, -1), "s");
  int columns = 60;
  std::string out;
  ProgressLine line([&] { return columns; }, [&](std::string_view text) { out += text; });
  line.show(kStart, Time{});
  EXPECT_EQ(out, "\rstep 1/300  epoch 0.01/3  loss 2.3026  2105 samples/s\x1b[K");
  out.clear();
  columns = 40;  // the terminal was resized
  line.show(kStart, Time{} + seconds(1));
  EXPECT_EQ(out, "\rstep 1/300  epoch 0.01/3  loss 2.3026\x1b[K");
}

TEST(Progress, OnATerminalOneLineIsWrittenOver) {
  std::string out;
  ProgressLine line([] { return 100; }, [&](std::string_view text) { out += text; });
  const Time start{};
  line.show(kStart, start);
  EXPECT_EQ(out, "\r" + std::string(kStartText) + "\x1b[K");
  out.clear();
  line.show(kStart, start + milliseconds(199));
  EXPECT_EQ(out, "");
  line.show(kStart, start + milliseconds(200));
  EXPECT_EQ(out, "\r" + std::string(kStartText) + "\x1b[K");
  out.clear();
  line.message("hello");
  EXPECT_EQ(out, "\nhello\n");
  out.clear();
  line.end();
  EXPECT_EQ(out, "");  // no line is open
  Progress last = kStart;
  last.step = last.steps;
  line.show(last, start + milliseconds(201));
  EXPECT_EQ(out, "\r" + progress_text(last) + "\x1b[K\n");
}

TEST(Progress, ElsewhereAPlainLineEveryTenSeconds) {
  std::string out;
  ProgressLine line(nullptr, [&](std::string_view text) { out += text; });
  const Time start{};
  line.show(kStart, start);
  EXPECT_EQ(out, std::string(kStartText) + "\n");
  out.clear();
  line.show(kStart, start + milliseconds(9999));
  line.end();
  EXPECT_EQ(out, "");
  line.show(kStart, start + seconds(10));
  EXPECT_EQ(out, std::string(kStartText) + "\n");
  out.clear();
  Progress last = kStart;
  last.step = last.steps;
  line.show(last, start + seconds(11));
  EXPECT_EQ(out, progress_text(last) + "\n");
}

}  // namespace
}  // namespace starling
