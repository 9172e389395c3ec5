// A number that changes over the steps of a run.
#include "starling/optim/course.h"

#include <gtest/gtest.h>

#include "tests/refusal.h"

namespace starling {
namespace {

Course course(const std::string& points) { return {"outer_lr_at", points, 0.7, at_least(0)}; }

TEST(Course, IsAnotherNumberUpToItsFirstPoint) {
  for (const std::uint64_t step : {1, 10, 1'000'000}) EXPECT_EQ(course("").at(step), 0.7);
  const Course one = course(" 10:0.25 ");
  EXPECT_EQ(one.at(1), 0.7);
  EXPECT_EQ(one.at(10), 0.7);
  EXPECT_EQ(one.at(11), 0.25);
  EXPECT_EQ(one.at(1'000'000), 0.25);
  EXPECT_EQ(course("0:2").at(1), 2);
}

TEST(Course, IsAStraightLineBetweenTwoPointsAndJumpsAfterTwoOfOneStep) {
  const Course pier = course("100:0 200:1.1 800:1.1 800:0.9");
  EXPECT_EQ(pier.at(100), 0.7);
  EXPECT_DOUBLE_EQ(pier.at(101), 0.011);
  EXPECT_DOUBLE_EQ(pier.at(150), 0.55);
  EXPECT_EQ(pier.at(200), 1.1);
  EXPECT_EQ(pier.at(500), 1.1);
  EXPECT_EQ(pier.at(800), 1.1);
  EXPECT_EQ(pier.at(801), 0.9);
  const Course falls = course("0:1 0:3 4:1");
  EXPECT_EQ(falls.at(1), 2.5);
  EXPECT_EQ(falls.at(4), 1);
  EXPECT_EQ(course("1:0 18446744073709551615:1e308").at(1ULL << 63), 0.5e308);
}

TEST(Course, RefusesWhatIsNoPoints) {
  const auto said = [](const std::string& points) {
    return refusal<UsageError>([&] { Course("m", points, 0.9, from_below(0, 1)); });
  };
  EXPECT_EQ(
      said("5:0.5 4:0.5"),
      "m = \"5:0.5 4:0.5\": \"4:0.5\" is not allowed: wants STEP:VALUE with rising steps, at most two of "
      "the same step, and values at least 0 and below 1");
  for (const std::string wrong :
       {"5", "5:", ":0.5", ":", "5:1", "5:-0.1", "5:nan", "5:0.5x", "5.5:0.5", "-5:0.5", "5:0.5,", "5 :0.5",
        "99999999999999999999:0.5", "5:0 5:0.1 5:0.2", "\xff:0.5"})
    EXPECT_NE(said(wrong).find("is not allowed: wants STEP:VALUE"), std::string::npos) << wrong;
}

}  // namespace
}  // namespace starling
