// The wires under mixing alone, without a gradient: how near the workers come to each other, and that the sum is kept.
// Conservation alone shows nothing: a wire that sends zeros conserves, too.
#include <cmath>
#include <string>

#include "tests/exchange/flock.h"

namespace starling {
namespace {

// RMS distance of the workers' values to their mean.
double consensus_distance(Flock& flock, int n) {
  double sum = 0;
  for (std::size_t k = 0; k < Worker::size; ++k) {
    double mean = 0;
    for (int i = 0; i < n; ++i) mean += flock[i].x[0][k] / static_cast<double>(n);
    for (int i = 0; i < n; ++i) sum += std::pow(flock[i].x[0][k] - mean, 2);
  }
  return std::sqrt(sum / (static_cast<double>(n) * Worker::size));
}

struct Reached {
  Wire wire;
  double at_most;  // of values of order 1: the wire's last bit or two
};

TEST(Wires, WorkersComeTogetherToTheLastBitOfTheWireAndTheSumIsKept) {
  for (const char* topology : {"base-2", "ring", "complete", "alternating-exp-ring"}) {
    for (const Reached& reached : {Reached{Wire::fp32, 3e-7}, {Wire::bf16, 2e-3}, {Wire::fp16, 2.5e-4}}) {
      SCOPED_TRACE(std::string(topology) + " " + std::string(name_of(reached.wire)));
      const int n = std::string(topology) == "alternating-exp-ring" ? 4 : 5;
      Flock flock(topology, n, {}, reached.wire);
      const double before = flock.sum(), far = consensus_distance(flock, n);
      flock.everyone([](Worker& w) {
        for (int t = 0; t < 60; ++t) w.step();
        w.end();
      });
      EXPECT_NEAR(flock.sum(), before, 2e-2);  // of a million values
      const double near = consensus_distance(flock, n);
      EXPECT_GT(far, 0.5);
      EXPECT_LT(near, reached.at_most);
      EXPECT_EQ(flock[0].exchange.statistics().aborted, 0U);
    }
  }
}

TEST(Wires, SixteenBitsAreHalfTheBytes) {
  for (const char* topology : {"one-peer-exponential", "ring"}) {
    double sent[2];
    for (const Wire wire : {Wire::fp32, Wire::bf16}) {
      Flock flock(topology, 4, {}, wire);
      flock.everyone([](Worker& w) {
        for (int t = 0; t < 10; ++t) w.step();
        w.end();
      });
      sent[wire == Wire::fp32 ? 0 : 1] = static_cast<double>(flock[0].exchange.statistics().bytes_sent);
    }
    EXPECT_NEAR(sent[1] / sent[0], 0.5, 0.02) << topology;
  }
}

TEST(Wires, WhatFp16CannotHoldIsNotSent) {
  Flock flock("one-peer-ring", 2, {}, Wire::fp16);
  flock[0].x[0][3] = 1e5F;
  flock[0].step(), flock[1].step();  // what was sent before
  EXPECT_EQ(flock[0].step(), 1);     // block 1 alone
  EXPECT_EQ(flock[1].step(), 1);
  EXPECT_LT(flock[1].x[0][3], 10);
}

}  // namespace
}  // namespace starling
