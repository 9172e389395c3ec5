// The wires between workers that mix and do nothing else: the distance that they reach, and the
// conserved sum. Conservation alone shows nothing: a wire that sends zeros conserves too.
#include <fmt/format.h>

#include "tests/exchange/flock.h"
#include "tests/sanitized.h"

namespace starling {
namespace {

double consensus_distance(Flock& flock, int n) {
  std::vector<std::span<const float>> workers;
  for (int i = 0; i < n; ++i) workers.emplace_back(flock[i].x[0]);
  return rms_to_mean(workers);
}

struct Reached {
  Wire wire;
  int one_in;
  double at_most;  // of values of order 1: the wire's last bit or two
};

TEST(Wires, WorkersComeTogetherToTheLastBitOfTheWireAndTheSumIsKept) {
  for (const char* topology : {"base-2", "complete", "ring", "alternating-exp-ring"}) {
    if (kSanitized && topology == std::string("ring")) break;  // no other code than the first two
    for (const Reached& reached : {Reached{Wire::fp32, 1, 3e-7},
                                   {Wire::bf16, 1, 2e-3},
                                   {Wire::fp16, 1, 2.5e-4},
                                   {Wire::int8, 1, 1e-3},
                                   {Wire::int4, 1, 1e-1},
                                   {Wire::fp32, 3, 1e-6},
                                   {Wire::bf16, 4, 2e-3}}) {
      SCOPED_TRACE(fmt::format("{} {} one in {}", topology, name_of(reached.wire), reached.one_in));
      const int n = std::string(topology) == "alternating-exp-ring" ? 4 : 5;
      Flock flock(topology, n, {}, reached.wire, reached.one_in);
      // Their grids first follow values far out of range.
      const int rounds = (is_modular(reached.wire) ? 120 : 60) * reached.one_in;
      const double before = flock.sum(), far = consensus_distance(flock, n);
      flock.everyone([rounds](Worker& w) {
        for (int t = 0; t < rounds; ++t) w.step();
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

TEST(Wires, NarrowOnesAreFewerBytes) {
  struct Bytes {
    Wire wire;
    int one_in;
    double share;
  };
  for (const char* topology : {"one-peer-exponential", "ring"}) {
    double all = 0;
    for (const auto& [wire, one_in, share] : {Bytes{Wire::fp32, 1, 1},
                                              {Wire::bf16, 1, 0.5},
                                              {Wire::int8, 1, 0.25},
                                              {Wire::int4, 1, 0.125},
                                              {Wire::fp32, 4, 0.25},
                                              {Wire::bf16, 5, 0.1}}) {
      Flock flock(topology, 4, {}, wire, one_in);
      flock.everyone([](Worker& w) {
        for (int t = 0; t < 10; ++t) w.step();
        w.end();
      });
      const auto sent = static_cast<double>(flock[0].exchange.statistics().payload_sent);
      if (share == 1) all = sent;
      EXPECT_NEAR(sent / all, share, 0.02) << topology << " " << name_of(wire) << " one in " << one_in;
    }
  }
}

TEST(Wires, WhatFp16CannotHoldIsNotSent) {
  Flock flock("one-peer-ring", 2, {}, Wire::fp16);
  flock[0].x[0][3] = 1e5F;
  flock[0].step(), flock[1].step();  // the earlier blocks
  EXPECT_EQ(flock[0].step(), 1);     // block 1 alone
  EXPECT_EQ(flock[1].step(), 1);
  EXPECT_LT(flock[1].x[0][3], 10);
}

}  // namespace
}  // namespace starling
