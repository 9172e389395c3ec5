// Gossip on virtual workers, and pushes: sums that are kept, and the theory's speed.
#include "tests/gossip/virtual_gossip.h"

#include <map>

#include "tests/refusal.h"

namespace starling {
namespace {

using Edges = GossipStatistics::Neighbour;

// With gradients that change nothing.
Values gossiped(const std::string& topology, int n, bool momentum, int gradients) {
  return gossiped(options_of(topology, n, momentum), {}, gradients).x;
}

// exp(-decay) per gradient.
double decay(const std::string& topology, int n, bool momentum, int from, int to) {
  return std::log(distance(gossiped(topology, n, momentum, from)) /
                  distance(gossiped(topology, n, momentum, to))) /
         (to - from);
}

TEST(VirtualGossip, TheSameSeedGivesTheSameBits) {
  const Values once = gossiped("ring", 8, true, 50);
  EXPECT_EQ(once, gossiped("ring", 8, true, 50));
  EXPECT_NE(once, gossiped("ring", 8, false, 50));
}

constexpr Wire kWires[] = {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4};

TEST(VirtualGossip, EveryWireKeepsTheSum) {
  for (const Wire wire : kWires) {
    for (const bool momentum : {false, true}) {
      const End end = gossiped(options_of("ring", 8, momentum, wire), {.moves = 0.1F}, 100);
      EXPECT_LT(end.drift, 1e-6) << name_of(wire);
    }
  }
}

// Some averagings are then in doubt, and are mixed late if the other end has committed them.
TEST(VirtualGossip, EveryWireKeepsTheSumWhereConnectionsBreak) {
  for (const Wire wire : {Wire::fp32, Wire::int8, Wire::int4}) {
    const End end = gossiped(options_of("ring", 6, true, wire),
                             {.moves = 0.1F, .breaks = true, .latency = kGradient / 10}, 200);
    EXPECT_LT(end.drift, 2e-6) << name_of(wire);
    EXPECT_GT(end.of_edges(&Edges::late), 0U);
  }
}

// Workers differ as much as in training, relative to their common part. Modular codes have no last
// bit at which convergence ends.
TEST(VirtualGossip, EveryWireBringsWorkersTogether) {
  const std::map<Wire, double> near{
      {Wire::fp32, 1e-7}, {Wire::bf16, 2e-4}, {Wire::fp16, 3e-5}, {Wire::int8, 1e-6}, {Wire::int4, 1e-5}};
  for (const auto& [wire, bound] : near) {
    for (const bool momentum : {false, true}) {
      const Begin begin{.common = 0.05F, .own = 1e-3F};
      EXPECT_LT(distance(gossiped(options_of("ring", 16, momentum, wire), begin, 300).x), bound)
          << name_of(wire) << (momentum ? " with momentum" : "");
    }
  }
}

// Without momentum the slowest mode of a ring decays as e^(-t / (2 chi1)).
TEST(VirtualGossip, MomentumIsTenTimesFasterOnARingOf64) {
  const double plain = decay("ring", 64, false, 400, 800);
  EXPECT_NEAR(plain, 1 / (2 * a2cid2_of(pair_rates(make_schedule("ring", 64), 1)).chi1), 0.1 * plain);
  EXPECT_GT(decay("ring", 64, true, 100, 400), 10 * plain);
}

// A2CiD2's constants suit the rate that was asked for. On a network that is too slow for it, stalls
// or loses, the workers stay as near to each other as without momentum.
TEST(VirtualGossip, MomentumIsStableWhereTheAskedRateIsNotReached) {
  struct Case {
    int n;
    double asked;
    Begin begin;
    Wire wire = Wire::fp32;
  };
  const double slow = 16'000, slower = 6'000;  // bytes per second
  for (const Case& c :
       {Case{16, 1, {.rate = slower}}, Case{16, 4, {.rate = slow}}, Case{32, 1, {.rate = slow}},
        Case{32, 10, {.rate = slow}}, Case{64, 3, {.rate = slow}}, Case{32, 1, {.stalls = true}},
        Case{32, 1, {.breaks = true}}, Case{32, 2, {.rate = slow}, Wire::int8},
        Case{64, 1, {.rate = slow}, Wire::int4}}) {
    GossipOptions options{.rates = pair_rates(make_schedule("ring", c.n), c.asked), .wire = c.wire};
    Begin begin = c.begin;
    begin.moves = 0.1F;
    const End plain = gossiped(options, begin, 300);
    const A2cid2 papers = a2cid2_of(options.rates);
    options.algorithm = pair_averaging(c.wire == Wire::int4 ? at_most(papers, 1) : papers);
    const End with_momentum = gossiped(options, begin, 300);
    EXPECT_LT(distance(with_momentum.x), 1.25 * distance(plain.x)) << c.n << " at rate " << c.asked;
    EXPECT_LT(with_momentum.drift, 1e-5) << c.n << " at rate " << c.asked;
  }
}

TEST(VirtualGossip, ARateThatIsNotReachedIsSaidOnce) {
  const auto said = [](double asked, double network, bool momentum) {
    GossipOptions options{.rates = pair_rates(make_schedule("ring", 16), asked)};
    if (momentum) options.algorithm = pair_averaging(a2cid2_of(options.rates));
    return gossiped(options, {.rate = network}, 400).said_slow;
  };
  EXPECT_EQ(said(4, 6'000, true), 16);
  EXPECT_EQ(said(4, 6'000, false), 0);  // then nothing depends on it
  EXPECT_EQ(said(1, kAtOnce, true), 0);
}

GossipOptions pushing(const std::string& topology, int n, Wire wire = Wire::fp32) {
  return {.rates = push_rates(make_shares(topology, n), 1), .algorithm = pair_push(), .wire = wire};
}

// On a directed graph. A push during a broken connection ends at one of its ends, even if they
// learn of it late.
TEST(VirtualGossip, PushesKeepAllMassAndWhatItWeighs) {
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16}) {
    for (const bool breaks : {false, true}) {
      const End end = gossiped(pushing("n-peer-exponential-1", 6, wire),
                               {.moves = 0.1F, .breaks = breaks, .latency = kGradient / 10}, 200);
      EXPECT_LT(end.drift, 2e-6) << name_of(wire);
      EXPECT_NEAR(end.mass, 6, 1e-9) << name_of(wire);
      for (const GossipStatistics& mine : end.statistics) EXPECT_GT(mine.averaged, 100U);
      EXPECT_EQ(end.of_edges(&Edges::aborted) > 0, breaks);
    }
  }
}

// A push that was given up is no longer the sender's, until it is known that it failed. Otherwise
// its next pushes would use mass that is gone.
TEST(VirtualGossip, AWeightStaysAboveZeroWherePushesAreGivenUp) {
  const End end = gossiped(pushing("complete", 3, Wire::fp32),
                           {.moves = 0.1F, .stalls = true, .latency = kGradient / 4}, 2000);
  EXPECT_LT(end.drift, 2e-6);
  EXPECT_NEAR(end.mass, 3, 1e-9);
  EXPECT_GT(end.least, 0);
  std::uint64_t in_part = 0;
  for (const auto& edge : end.statistics[0].neighbours) in_part += edge.begun - edge.averaged;
  EXPECT_GT(in_part, 0U);
}

TEST(VirtualGossip, PushPullKeepsTheSumOfWhatIsTrackedAndBringsWorkersTogether) {
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16}) {
    GossipOptions options = pushing("n-peer-exponential-1", 6, wire);
    options.algorithm = pair_push_pull();
    for (const bool breaks : {false, true}) {
      const End end = gossiped(options, {.moves = 0.1F, .breaks = breaks, .latency = kGradient / 10}, 200);
      EXPECT_LT(end.tracked, 2e-6) << name_of(wire);
      EXPECT_EQ(end.mass, 6);
      EXPECT_EQ(end.of_edges(&Edges::aborted) > 0, breaks);
      EXPECT_EQ(end.of_edges(&Edges::late) > 0, breaks);
    }
  }
  GossipOptions options = pushing("n-peer-exponential-1", 8);
  options.algorithm = pair_push_pull();
  EXPECT_LT(distance(gossiped(options, {}, 200).x), 1e-6);
}

TEST(VirtualGossip, PushesBringWorkersToTheirMean) {
  const Begin begin{.common = 1, .own = 0.1F};
  const GossipOptions options = pushing("n-peer-exponential-1", 8);
  const Values x0 = gossiped(options, begin, 0).x, x = gossiped(options, begin, 200).x;
  EXPECT_LT(distance(x), 1e-6);
  for (std::size_t k = 0; k < kSize; ++k) {
    double mean = 0;
    for (const auto& one : x0) mean += one[k] / 8;
    EXPECT_NEAR(x[0][k], mean, 1e-6);
  }
}

TEST(VirtualGossip, PushesNeedAPathFromEachWorkerToEachOther) {
  Schedule schedule{"line", {Graph(3)}};
  schedule.rounds[0].neighbours = {{}, {{0, 0.5}}, {{1, 0.5}}};  // 0 to 1 to 2
  EXPECT_EQ(refusal<UsageError>([&] { push_rates(schedule, 1); }),
            "no path of pushes leads from worker 1 to worker 0");
}

}  // namespace
}  // namespace starling
