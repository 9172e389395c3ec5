// Mixing over each wire without a gradient and without an exchange: the distance that the workers
// reach.
#include <array>
#include <cstdio>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "starling/exchange/replicas.h"
#include "starling/topology/schedules.h"
#include "tests/exchange/one_thread.h"

namespace starling {
namespace {

// Equal workers, with parameters of ordinary size.
std::vector<std::vector<float>> equal_workers(int n, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 0.05F);
  std::vector<float> common(20'000);
  for (float& value : common) value = normal(random);
  return {static_cast<std::size_t>(n), common};
}

// Takes them apart by a random distance of this size.
void take_apart(std::vector<std::vector<float>>& x, float distance, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, distance);
  for (auto& worker : x) {
    for (float& value : worker) value += normal(random);
  }
}
constexpr float kOfTraining = 9e-4F;  // the distance that training keeps

// docs/wires.md has the output.
TEST(Contraction, LevelsReachedWithoutAGradient) {
  const std::pair<const char*, int> worlds[] = {
      {"base-2", 16}, {"base-2", 5}, {"ring", 16}, {"complete", 16}};
  for (std::size_t world = 0; world < std::size(worlds); ++world) {
    const auto [topology, n] = worlds[world];
    const Schedule schedule = make_schedule(topology, n);
    struct Sent {
      Wire wire;
      std::uint32_t one_in;
      std::array<double, 4> at_most;  // in each world
    };
    for (const auto& [wire, one_in, at_most] : {Sent{Wire::fp32, 1, {1e-8, 1e-8, 1e-4, 1e-8}},
                                                {Wire::bf16, 1, {2e-4, 2e-4, 2e-4, 2e-4}},
                                                {Wire::fp16, 1, {3e-5, 3e-5, 1e-4, 3e-5}},
                                                {Wire::int8, 1, {1e-7, 1e-5, 1e-4, 1e-7}},
                                                {Wire::int4, 1, {1e-5, 2e-4, 1e-4, 1e-5}},
                                                {Wire::fp32, 4, {1e-8, 1e-8, 3e-4, 1e-8}},
                                                {Wire::bf16, 4, {2e-4, 2e-4, 3e-4, 2e-4}},
                                                {Wire::int8, 4, {1e-5, 1e-4, 3e-4, 1e-7}},
                                                {Wire::int4, 4, {3e-4, 5e-4, 3e-4, 1e-5}},
                                                {Wire::fp32, 16, {3e-4, 5e-4, 4e-4, 1e-8}}}) {
      std::mt19937_64 random(5);
      auto x = equal_workers(n, random);
      take_apart(x, kOfTraining, random);
      Herd herd(wire, x, schedule.rounds.size(), one_in);
      const double sum = herd.sum();
      double reached[2];
      for (int t = 0; t < 60; ++t) {
        if (t == 20) reached[0] = herd.consensus_distance();
        herd.mix(schedule.at(static_cast<std::uint64_t>(t)));
      }
      reached[1] = herd.consensus_distance();
      std::printf("%-8s %2d %s, one in %u: %.1e after 20 rounds, %.1e after 60\n", topology, n,
                  std::string(name_of(wire)).c_str(), one_in, reached[0], reached[1]);
      EXPECT_LT(reached[1], at_most[world]) << topology << " " << name_of(wire) << " one in " << one_in;
      EXPECT_NEAR(herd.sum(), sum, 1e-2);  // of magnitudes of 13,000
    }
  }
}

// The same with CHOCO, where each worker has its own choice of values and the default gamma of
// exchange/replicas.h.
TEST(Contraction, ChocoWithoutAGradient) {
  const std::pair<const char*, int> worlds[] = {{"ring", 16}, {"complete", 16}};
  for (std::size_t world = 0; world < std::size(worlds); ++world) {
    const auto [topology, n] = worlds[world];
    const Schedule schedule = make_schedule(topology, n);
    const Graph& graph = schedule.rounds.front();
    for (const auto& [one_in, at_most] : {std::pair{1U, std::array{1e-4, 1e-8}},
                                          {4U, std::array{2e-4, 1e-7}},
                                          {16U, std::array{3e-4, 1e-4}},
                                          {64U, std::array{6e-4, 5e-4}}}) {
      std::mt19937_64 random(5);
      auto x = equal_workers(n, random);
      const std::vector<float> common = x[0];
      std::vector<Replicas> replicas(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        std::vector<int> neighbours;
        for (const Neighbour& j : graph.neighbours[i]) neighbours.push_back(j.rank);
        const std::span<const float> whole(common);
        replicas[i].begin(neighbours, {&whole, 1});
      }
      take_apart(x, kOfTraining, random);
      const auto sum = [&] {
        double all = 0;
        for (const auto& worker : x) all = std::accumulate(worker.begin(), worker.end(), all);
        return all;
      };
      const double before = sum();
      const TopK top{one_in};
      std::vector<std::uint32_t> room;
      double reached[2];
      for (int t = 0; t < 60; ++t) {
        if (t == 20) reached[0] = rms_to_mean({x.begin(), x.end()});
        std::vector<std::shared_ptr<Buffer>> sent;
        for (std::size_t i = 0; i < x.size(); ++i) {
          sent.push_back(std::make_shared<Buffer>(4 * top.words(common.size())));
          const std::span<const float> whole(x[i]);
          replicas[i].write({&whole, 1}, top, sent[i]->data(), room);
        }
        for (std::size_t i = 0; i < x.size(); ++i) {
          std::vector<kernels::Mix> mixes;
          for (const Neighbour& j : graph.neighbours[i]) {
            const Arrival mix =
                replicas[i].take({j.rank,
                                  static_cast<float>(j.weight),
                                  {payload_of(sent[static_cast<std::size_t>(j.rank)]), Wire::fp32},
                                  {payload_of(sent[i]), Wire::fp32}},
                                 top, default_gamma(static_cast<int>(one_in)));
            mixes.push_back({mix.weight, mix.theirs.values(), mix.mine.values()});
          }
          kernels::update(kernels::SgdStep{}, mixes, x[i].data(), nullptr, {}, {}, x[i].size());
        }
      }
      reached[1] = rms_to_mean({x.begin(), x.end()});
      std::printf("%-8s %2d choco, one in %u: %.1e after 20 rounds, %.1e after 60\n", topology, n, one_in,
                  reached[0], reached[1]);
      EXPECT_LT(reached[1], at_most[world]) << topology << " one in " << one_in;
      EXPECT_NEAR(sum(), before, 1e-2);
    }
  }
}

// After a raised learning rate or parameters set by hand, the grid follows, and the sum stays. This
// holds for large parameters too, whose adjacent floats are far apart on the finest grid.
TEST(Contraction, ModularCodesSurviveAJump) {
  const Schedule schedule = make_schedule("base-2", 8);
  for (const Wire wire : {Wire::int8, Wire::int4}) {
    for (const float size : {0.1F, 1000.0F}) {
      std::mt19937_64 random(5);
      Herd herd(wire, std::vector<std::vector<float>>(8, std::vector<float>(5'000, size)),
                schedule.rounds.size());
      int t = 0;
      const auto rounds = [&](int n) {
        for (const int end = t + n; t < end; ++t) herd.mix(schedule.at(static_cast<std::uint64_t>(t)));
      };
      rounds(40);
      EXPECT_EQ(herd.consensus_distance(), 0);
      take_apart(herd.x, 0.3F, random);
      const double sum = herd.sum();
      rounds(80);
      EXPECT_LT(herd.consensus_distance(), 1e-4 + 3e-7 * size) << name_of(wire) << " " << size;
      EXPECT_NEAR(herd.sum(), sum, 1e-6 * sum);
    }
  }
}

}  // namespace
}  // namespace starling
