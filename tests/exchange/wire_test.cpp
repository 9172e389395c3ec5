// The wires under mixing alone, without a gradient: how near the workers come to each other, and that the sum is kept.
// Conservation alone shows nothing: a wire that sends zeros conserves, too.
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "tests/exchange/flock.h"

namespace starling {
namespace {

double consensus_distance(Flock& flock, int n) {
  std::vector<std::span<const float>> workers;
  for (int i = 0; i < n; ++i) workers.emplace_back(flock[i].x[0]);
  return rms_to_mean(workers);
}

struct Reached {
  Wire wire;
  double at_most;  // of values of order 1: the wire's last bit or two
};

TEST(Wires, WorkersComeTogetherToTheLastBitOfTheWireAndTheSumIsKept) {
  for (const char* topology : {"base-2", "ring", "complete", "alternating-exp-ring"}) {
    for (const Reached& reached : {Reached{Wire::fp32, 3e-7},
                                   {Wire::bf16, 2e-3},
                                   {Wire::fp16, 2.5e-4},
                                   {Wire::int8, 1e-3},
                                   {Wire::int4, 1e-1}}) {
      SCOPED_TRACE(std::string(topology) + " " + std::string(name_of(reached.wire)));
      const int n = std::string(topology) == "alternating-exp-ring" ? 4 : 5;
      Flock flock(topology, n, {}, reached.wire);
      const int rounds =
          is_modular(reached.wire) ? 120 : 60;  // their grids first follow what is far out of range
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

// From where training keeps workers apart, for parameters of ordinary size. docs/wires.md has what is printed here.
TEST(Wires, LevelsReachedWithoutAGradient) {
  const std::pair<const char*, int> worlds[] = {
      {"base-2", 16}, {"base-2", 5}, {"ring", 16}, {"complete", 16}};
  for (std::size_t world = 0; world < std::size(worlds); ++world) {
    const auto [topology, n] = worlds[world];
    const Schedule schedule = make_schedule(topology, n);
    for (const auto& [wire, bounds] : {std::pair{Wire::fp32, std::array{1e-8, 1e-8, 1e-4, 1e-8}},
                                       {Wire::bf16, {2e-4, 2e-4, 2e-4, 2e-4}},
                                       {Wire::fp16, {3e-5, 3e-5, 1e-4, 3e-5}},
                                       {Wire::int8, {1e-7, 1e-5, 1e-4, 1e-7}},
                                       {Wire::int4, {1e-5, 2e-4, 1e-4, 1e-5}}}) {
      std::mt19937_64 random(5);
      std::normal_distribution<float> normal;
      std::vector<float> common(20'000);
      for (float& value : common) value = 0.05F * normal(random);
      std::vector<std::vector<float>> x(static_cast<std::size_t>(n), common);
      for (auto& worker : x) {
        for (float& value : worker) value += 9e-4F * normal(random);
      }
      Herd herd(wire, x, schedule.rounds.size());
      const double sum = herd.sum();
      double reached[2];
      for (int t = 0; t < 60; ++t) {
        if (t == 20) reached[0] = herd.consensus_distance();
        herd.mix(schedule.at(static_cast<std::uint64_t>(t)));
      }
      reached[1] = herd.consensus_distance();
      std::printf("%-8s %2d %s: %.1e after 20 rounds, %.1e after 60\n", topology, n,
                  std::string(name_of(wire)).c_str(), reached[0], reached[1]);
      EXPECT_LT(reached[1], bounds[world]);
      EXPECT_NEAR(herd.sum(), sum, 1e-2);  // of magnitudes of 13,000
    }
  }
}

// A learning rate that is raised, parameters that were set by hand: the grid follows, and the sum stays. Of large parameters
// too, whose neighbouring floats are far apart on the finest grid.
TEST(Wires, ModularCodesSurviveAJump) {
  const Schedule schedule = make_schedule("base-2", 8);
  for (const Wire wire : {Wire::int8, Wire::int4}) {
    for (const float size : {0.1F, 1000.0F}) {
      std::mt19937_64 random(5);
      std::normal_distribution<float> normal;
      Herd herd(wire, std::vector<std::vector<float>>(8, std::vector<float>(5'000, size)),
                schedule.rounds.size());
      int t = 0;
      const auto rounds = [&](int n) {
        for (const int end = t + n; t < end; ++t) herd.mix(schedule.at(static_cast<std::uint64_t>(t)));
      };
      rounds(40);
      EXPECT_EQ(herd.consensus_distance(), 0);
      for (auto& worker : herd.x) {
        for (float& value : worker) value += 0.3F * normal(random);
      }
      const double sum = herd.sum();
      rounds(80);
      EXPECT_LT(herd.consensus_distance(), 1e-4 + 3e-7 * size) << name_of(wire) << " " << size;
      EXPECT_NEAR(herd.sum(), sum, 1e-6 * sum);
    }
  }
}

TEST(Wires, NarrowOnesAreFewerBytes) {
  const std::pair<Wire, double> wires[] = {
      {Wire::fp32, 1}, {Wire::bf16, 0.5}, {Wire::int8, 0.25}, {Wire::int4, 0.125}};
  for (const char* topology : {"one-peer-exponential", "ring"}) {
    double all = 0;
    for (const auto& [wire, share] : wires) {
      Flock flock(topology, 4, {}, wire);
      flock.everyone([](Worker& w) {
        for (int t = 0; t < 10; ++t) w.step();
        w.end();
      });
      const auto sent = static_cast<double>(flock[0].exchange.statistics().bytes_sent);
      if (wire == Wire::fp32) all = sent;
      EXPECT_NEAR(sent / all, share, 0.02) << topology << " " << name_of(wire);
    }
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
