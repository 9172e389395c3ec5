#include "starling/plan/failures.h"

#include <limits>
#include <random>

#include <gtest/gtest.h>

namespace starling {
namespace {

constexpr double kDay = 86'400;

TEST(Failures, NothingFailsNothingIsLost) {
  const Failures none;
  EXPECT_EQ(checkpoint_period(none, 8), std::numeric_limits<double>::infinity());
  EXPECT_EQ(lost_to_restarts(none, 8), 0);
  EXPECT_EQ(lost_to_absence(none, 1), 0);
}

// The loss in a simulated run, checkpoint by checkpoint, with failures at random times.
double lived_through(const Failures& f, int hosts, double Tc) {
  std::mt19937_64 random(7);
  std::exponential_distribution<double> until_failure(hosts * f.rate);
  double time = 0, worked = 0, next = until_failure(random);
  while (time < 40'000 * kDay) {
    const double end = time + Tc + f.checkpoint;
    if (next > end) {
      time = end;
      worked += Tc;
    } else {  // all work since the last checkpoint is lost
      time = next + f.restart;
      next = time + until_failure(random);
    }
  }
  return 1 - worked / time;
}

TEST(Failures, RestartsCostWhatARunLosesThatIsLivedThrough) {
  const Failures f{.rate = 6.5 / 1000 / kDay};
  for (const int hosts : {8, 128}) {
    const double Tc = checkpoint_period(f, hosts), lost = lost_to_restarts(f, hosts);
    EXPECT_NEAR(lost, lived_through(f, hosts, Tc), 0.1 * lost) << hosts;
    EXPECT_LT(lost, lived_through(f, hosts, Tc / 3)) << hosts;
    EXPECT_LT(lost, lived_through(f, hosts, Tc * 3)) << hosts;
  }
}

// Restarts cost more with more hosts. Only one host is absent, however many there are.
TEST(Failures, AbsenceDoesNotGrowWithTheHosts) {
  const Failures f{.rate = 25 / 1000.0 / kDay};
  EXPECT_NEAR(lost_to_absence(f, 2), 25 / 1000.0 / kDay * (3600 + 2 * 5), 1e-12);
  EXPECT_GT(lost_to_restarts(f, 128), 3 * lost_to_restarts(f, 8));
  EXPECT_EQ(lost_to_restarts({.rate = 1}, 1000), 1);
}

}  // namespace
}  // namespace starling
