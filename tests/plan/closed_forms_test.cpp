#include "tests/plan/closed_forms.h"

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(ClosedForms, CtaHidesTheLinkBehindTheWholeStep) {
  EXPECT_EQ(step_ahead(10, 20, {1, 1}, {15, 16}), 32);
  EXPECT_EQ(step_ahead(10, 20, {1, 1}, {15, 25}), 40);
  EXPECT_EQ(step_ahead(10, 20, {2}, {29}), 32);
  EXPECT_EQ(step_ahead(10, 20, {2}, {40}), 42);  // a single block
}

TEST(ClosedForms, AtcExposesItsLink) {
  EXPECT_EQ(step_inside(10, 20, {1, 1}, {0, 0}), 32);
  EXPECT_EQ(step_inside(10, 20, {0, 0}, {8, 8}), 46);
  // The link waits for the first update.
  EXPECT_EQ(step_inside(10, 20, {2, 2, 2}, {5, 5, 5}), 30 + 2 + 15);
  // The last block follows the last update.
  EXPECT_EQ(step_inside(10, 20, {5, 5, 5}, {2, 2, 2}), 30 + 15 + 2);
}

TEST(ClosedForms, AllReduceExposesTheLastBucketAndWhatDoesNotFit) {
  EXPECT_EQ(all_reduce_step(10, {10, 10}, {1, 1}, 2), 10 + 20 + 1 + 2);
  EXPECT_EQ(all_reduce_step(10, {10, 10}, {30, 30}, 2), 10 + 10 + 60 + 2);
  EXPECT_EQ(all_reduce_step(10, {10, 10}, {12, 1}, 2), 10 + 10 + 13 + 2);
}

TEST(ClosedForms, TheGainOfOverlapIsLargestWhereLinkAndComputeAreEqual) {
  const auto gain = [](double C) {
    const std::vector<double> b(4, 5.0), c(4, C / 4);
    return all_reduce_step(10, b, c, 2) / step_ahead(10, 20, {0.5, 0.5, 0.5, 0.5}, c);
  };
  EXPECT_NEAR(gain(32), 1.53, 0.005);
  for (double C : {8.0, 16.0, 28.0, 36.0, 48.0, 96.0}) EXPECT_LT(gain(C), gain(32)) << C;
}

}  // namespace
}  // namespace starling
