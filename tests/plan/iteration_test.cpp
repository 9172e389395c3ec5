#include "starling/plan/iteration.h"

#include <algorithm>
#include <numeric>

#include <gtest/gtest.h>

#include "tests/plan/closed_forms.h"

namespace starling {
namespace {

const std::vector<double> kB{0.004, 0.006, 0.010}, kU{0.001, 0.002, 0.001};
constexpr double kF = 0.010;

std::vector<std::vector<double>> links() {
  std::vector<std::vector<double>> all;
  for (const double times : {0.0, 0.2, 1.0, 3.0}) all.push_back({0.01 * times, 0.01 * times, 0.014 * times});
  return all;
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

// Nothing overlaps on its worker, nor on its link.
void check_lanes(const Iteration& one) {
  for (const bool link : {false, true}) {
    std::vector<Bar> lane;
    for (const Bar& bar : one.bars) {
      if ((bar.what == Bar::What::link) == link) lane.push_back(bar);
    }
    std::sort(lane.begin(), lane.end(), [](const Bar& a, const Bar& b) { return a.begin < b.begin; });
    for (std::size_t k = 1; k < lane.size(); ++k) EXPECT_GE(lane[k].begin, lane[k - 1].end - 1e-12);
  }
}

TEST(Iteration, TakesAsLongAsItsClosedForm) {
  for (const auto& c : links()) {
    const Iteration reduced = all_reduce_iteration(kF, kB, kU, c), mixed = iteration_ahead(kF, kB, kU, c);
    EXPECT_NEAR(reduced.seconds, all_reduce_step(kF, kB, c, sum(kU)), 1e-12);
    EXPECT_NEAR(mixed.seconds, step_ahead(kF, sum(kB), kU, c), 1e-9);
    check_lanes(reduced);
    check_lanes(mixed);
  }
}

TEST(Iteration, ShowsEachPartOfTheWorkOnce) {
  for (const Iteration& one :
       {all_reduce_iteration(kF, kB, kU, links()[1]), iteration_ahead(kF, kB, kU, links()[1])}) {
    double own = 0;
    int work = 0;
    for (const Bar& bar : one.bars) {
      if (bar.what == Bar::What::link) continue;
      own += bar.end - bar.begin;
      ++work;
      EXPECT_TRUE(bar.begin >= 0 && bar.end <= one.seconds + 1e-12);
    }
    EXPECT_EQ(work, 7);
    EXPECT_NEAR(own, kF + sum(kB) + sum(kU), 1e-9);
  }
}

}  // namespace
}  // namespace starling
