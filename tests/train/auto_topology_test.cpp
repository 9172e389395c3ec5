#include "starling/train/auto_topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "starling/core/error.h"
#include "starling/optim/schemes/table.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(PlannedAs, FollowsTheSchemesOwnOptions) {
  EXPECT_EQ(planned_as("cta"), Mixing::ahead);
  EXPECT_EQ(planned_as("gradient-tracking"), Mixing::ahead);
  EXPECT_EQ(planned_as("atc"), Mixing::inside);
  EXPECT_EQ(planned_as("push-sum"), Mixing::inside);
  EXPECT_EQ(planned_as({"push-sum", {{"staleness", 1}}}), Mixing::ahead);
  EXPECT_EQ(planned_as("a2cid2"), std::nullopt);
  EXPECT_EQ(planned_as("all-reduce"), std::nullopt);
}

TEST(SentBy, CountsVectorsIndicesAndLocalSteps) {
  const Sent tracking = sent_by({.scheme = "gradient-tracking"});
  EXPECT_EQ(tracking.vectors, 2U);
  EXPECT_TRUE(tracking.has_mean);
  const Sent top_k = sent_by({.scheme = "choco", .one_in = 16, .every = 4});
  EXPECT_TRUE(top_k.indices);
  EXPECT_FALSE(top_k.has_mean);
  EXPECT_EQ(top_k.one_in, 16);
  EXPECT_EQ(top_k.every, 4);
  EXPECT_FALSE(sent_by({.scheme = "push-sum"}).has_mean);
  EXPECT_EQ(sent_by({.wire = Wire::int8}).wire, Wire::int8);
}

TEST(SchedulesFor, AreThoseThatTheSchemeAccepts) {
  EXPECT_THAT(schedules_for({}, 8, 1), ElementsAre("base-2", "alternating-exp-ring", "ring", "complete"));
  EXPECT_THAT(schedules_for({.wire = Wire::int8}, 8, 1),
              ElementsAre("base-2", "alternating-exp-ring", "ring"));
  EXPECT_THAT(schedules_for({.scheme = "exact-diffusion"}, 8, 1), ElementsAre("ring", "complete"));
  EXPECT_THAT(schedules_for({.scheme = "d2"}, 4, 1), ElementsAre("complete"));  // of its eigenvalues
  EXPECT_THAT(refusal<UsageError>([] { schedules_for({.scheme = "choco", .wire = Wire::int8}, 8, 1); }),
              HasSubstr("scheme \"choco\" needs wire fp32, not \"int8\""));
}

}  // namespace
}  // namespace starling
