#include "starling/train/auto_topology.h"

#include <gmock/gmock.h>

#include "starling/optim/schemes/table.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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
