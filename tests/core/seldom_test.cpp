#include "starling/core/seldom.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

using namespace std::chrono_literals;

TEST(Seldom, ThePausesGrowAndAQuietTimeEndsThem) {
  Seldom message;
  const auto said = [&](Duration at) { return message.say(Time(at)).value_or("nothing"); };
  EXPECT_EQ(said(0s), "");
  EXPECT_EQ(said(500ms), "nothing");
  EXPECT_EQ(said(999ms), "nothing");
  EXPECT_EQ(said(1s), " (and 2 more since the last such line)");
  EXPECT_EQ(said(2s), "nothing");
  EXPECT_EQ(said(3s), " (and 1 more since the last such line)");
  EXPECT_EQ(said(7s), "");
  EXPECT_EQ(said(14s), "nothing");
  EXPECT_EQ(said(40s), " (and 1 more since the last such line)");
  EXPECT_EQ(said(40500ms), "nothing");
  EXPECT_EQ(said(41s), " (and 1 more since the last such line)");
}

TEST(Seldom, ItComesOnceAMinuteInTheEnd) {
  Seldom message;
  int said = 0;
  for (Duration at = 0s; at < 1h; at += 100ms) said += message.say(Time(at)) ? 1 : 0;
  EXPECT_GE(said, 60);
  EXPECT_LE(said, 66);
}

}  // namespace
}  // namespace starling
