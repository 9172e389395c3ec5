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
    "step 1/300  epoch 0.01/3  loss 2.3026  2105 samples/s  1:15 left  3 % waiting";

TEST(Progress, Text) {
  EXPECT_EQ(progress_text(kStart), kStartText);
  Progress slow = kStart;
  slow.seconds_left = 7384;
  EXPECT_NE(progress_text(slow).find("2:03:04 left"), std::string::npos);
}

TEST(Progress, OnATerminalOneLineIsWrittenOver) {
  std::string out;
  ProgressLine line(true, [&](std::string_view text) { out += text; });
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
  ProgressLine line(false, [&](std::string_view text) { out += text; });
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
