#include "starling/train/compute.h"

#include <cmath>

#include <gmock/gmock.h>

#include "starling/core/error.h"

namespace starling {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

// Writes a worker's timeline, in milliseconds.
class Written {
 public:
  void add(std::int64_t step, const char* name, int from, int to, int block = -1) {
    spans_.push_back({.name = name,
                      .block = block,
                      .step = step,
                      .begin = Time(milliseconds(from)),
                      .end = Time(milliseconds(to))});
  }
  // 2 ms of data, 10 of forward, 8 and 12 of backward for blocks 1 and 0, 3 and 4 of update; waits
  // between all of them.
  void add_step(std::int64_t step, int at, int slower = 0) {
    add(step, "data", at, at + 2);
    add(step, "forward", at + 5, at + 15 + slower);
    at += slower;
    // The first gradient comes at 24, after a backward since 20.
    add(step, "gradients", at + 24, at + 28, 1);
    add(step, "gradients", at + 28, at + 40, 0);
    add(step, "backward", at + 20, at + 60);  // all-reduce waits in it
    add(step, "wait", at + 70, at + 80, 0);
    add(step, "mix + update", at + 80, at + 83, 0);
    add(step, "mix + update", at + 90, at + 92, 1);
    add(step, "mix + update", at + 95, at + 97, 1);  // another pass over the block
    add(step, "optimizer step", at + 70, at + 99);
  }
  const std::vector<Timeline::Span>& spans() const { return spans_; }

 private:
  std::vector<Timeline::Span> spans_;
};

std::vector<double> rounded(std::vector<double> seconds) {  // to microseconds
  for (double& s : seconds) s = std::round(s * 1e6) / 1e6;
  return seconds;
}

TEST(RecordedCompute, LeavesOutWhatIsWaitedFor) {
  Written written;
  written.add(0, "mix + update", 0, 50, 0);  // set-up
  written.add_step(1, 100);
  written.add_step(2, 300, 7);
  const RecordedCompute recorded = recorded_compute(written.spans(), {1000, 500});
  EXPECT_THAT(recorded.profile.blocks, ElementsAre(4000, 2000));
  EXPECT_THAT(recorded.order, ElementsAre(1, 0));
  const Compute& compute = recorded.profile.compute.at(0);
  EXPECT_THAT(rounded(compute.data_wait), ElementsAre(0.002, 0.002));
  EXPECT_THAT(rounded(compute.forward), ElementsAre(0.010, 0.017));
  EXPECT_THAT(rounded(compute.backward.at(0)), ElementsAre(0.012, 0.012));
  EXPECT_THAT(rounded(compute.backward.at(1)), ElementsAre(0.008, 0.008));
  EXPECT_THAT(rounded(compute.update.at(0)), ElementsAre(0.003, 0.003));
  EXPECT_THAT(rounded(compute.update.at(1)), ElementsAre(0.004, 0.004));

  const Profile sorted = in_order(recorded.profile, recorded.order);
  EXPECT_THAT(sorted.blocks, ElementsAre(2000, 4000));
  EXPECT_THAT(rounded(sorted.compute.at(0).backward.at(0)), ElementsAre(0.008, 0.008));
  EXPECT_THAT(rounded(sorted.compute.at(0).update.at(0)), ElementsAre(0.004, 0.004));
  EXPECT_EQ(parse_profile(print_profile(sorted), "p.json").workers(), 1);
}

TEST(RecordedCompute, WithAccumulationTheLastBackwardCounts) {
  Written written;
  written.add(1, "data", 0, 2);
  written.add(1, "forward", 2, 12);
  written.add(1, "gradients", 14, 30, 0);
  written.add(1, "backward", 12, 32);
  written.add(1, "data", 32, 33);
  written.add(1, "forward", 33, 43);
  written.add(1, "gradients", 50, 60, 0);
  written.add(1, "backward", 45, 61);
  written.add(1, "mix + update", 62, 64, 0);
  written.add(1, "optimizer step", 62, 64);
  const Compute compute = recorded_compute(written.spans(), {10}).profile.compute.at(0);
  EXPECT_THAT(rounded(compute.data_wait), ElementsAre(0.003));
  EXPECT_THAT(rounded(compute.forward), ElementsAre(0.040));
  EXPECT_THAT(rounded(compute.backward.at(0)), ElementsAre(0.015));
}

TEST(RecordedCompute, LeavesOutTheFirstStepsAndBrokenOnes) {
  Written written;
  for (int step = 1; step <= 100; ++step) written.add_step(step, 1000 * step, step);
  EXPECT_EQ(recorded_compute(written.spans(), {10, 10}).profile.compute[0].forward.size(), 90U);
  EXPECT_NEAR(recorded_compute(written.spans(), {10, 10}).profile.compute[0].forward[0], 0.010 + 0.011, 1e-9);

  Written cut;
  for (int step = 1; step <= 6; ++step) cut.add_step(step, 1000 * step, step);
  cut.add(7, "forward", 7005, 7010);  // when the timeline was full
  EXPECT_EQ(recorded_compute(cut.spans(), {10, 10}).profile.compute[0].forward.size(), 5U);
}

TEST(RecordedCompute, NothingIsAnError) {
  Written written;
  written.add(1, "forward", 0, 10);
  EXPECT_THROW(recorded_compute(written.spans(), {10}), Error);
  EXPECT_THROW(recorded_compute({}, {10}), Error);
}

}  // namespace
}  // namespace starling
