#include "starling/probe/averaging.h"

#include "tests/optim/flock.h"

namespace starling {
namespace {

TEST(Averaging, EveryWayThatExistsIsTimed) {
  flock(3, [](int, World& world) {
    const std::vector<AveragingTime> times =
        measure_averaging(world, {.rounds = 20, .tensors = 2, .bytes = 4096});
    ASSERT_EQ(times.size(), 6U);
    for (const AveragingTime& time : times) {
      EXPECT_EQ(time.refused.empty(), time.way != "one-peer-exponential") << time.refused;
      EXPECT_EQ(time.mean > 0, time.refused.empty()) << time.way;
      EXPECT_LT(time.spread, 1e-5) << time.way;  // 2 at first
    }
  });
}

TEST(Averaging, OneWorkerAloneHasNobodyToAverageWith) {
  World world = World::alone();
  for (const AveragingTime& time : measure_averaging(world, {.rounds = 2, .bytes = 4096}))
    EXPECT_EQ(time.refused, "") << time.way;
}

}  // namespace
}  // namespace starling
