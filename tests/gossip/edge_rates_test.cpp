// How often each edge is used in gossip on virtual workers, and what is counted on it.
#include <map>

#include "starling/gossip/ad_psgd.h"
#include "tests/gossip/virtual_gossip.h"

namespace starling {
namespace {

// A worker asks at every second gradient, neither more often nor less. With random times this sum
// would have a deviation of 57.
TEST(VirtualGossip, AFixedClockAsksAtEvenTimes) {
  GossipOptions options = options_of("complete", 8, false);
  options.poisson = false;
  double begun = 0;  // at both ends
  for (const GossipStatistics& of : gossiped(options, {}, 200).statistics)
    begun += static_cast<double>(of.pairing.begun);
  EXPECT_NEAR(begun, 2 * 8 * 100, 2 * 8);
}

// Pearson's, of the averagings on the edges (i, j), counted by i.
using Expected = std::map<std::pair<int, int>, double>;
double chi_square(const std::vector<GossipStatistics>& workers, const Expected& expected) {
  double sum = 0;
  for (const auto& [edge, often] : expected) {
    const auto& mine = workers[static_cast<std::size_t>(edge.first)].neighbours;
    const auto with = std::ranges::find(mine, edge.second, &GossipStatistics::Neighbour::rank);
    const auto found = static_cast<double>(with->averaged);
    sum += (found - often) * (found - often) / often;
  }
  return sum;
}

// Only one side asks, and each edge is used as often as before.
TEST(VirtualGossip, OnTwoSidesOnlyOneAsks) {
  GossipOptions options = options_of("ring", 8, false);
  options.rates = bipartite(options.rates);
  const End end = gossiped(options, {.moves = 0.1F}, 2000);
  EXPECT_LT(end.drift, 1e-6);
  Expected expected;
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(end.statistics[static_cast<std::size_t>(i)].pairing.asked > 0, i % 2 == 1) << i;
    expected[{i, (i + 1) % 8}] = 0.5 * 2000;  // rate / 2 (p_ij + p_ji)
  }
  EXPECT_LT(chi_square(end.statistics, expected), 26.1) << "with 8 degrees of freedom once in 1000";
}

// The number of gradients between two averagings on an edge, for a Poisson clock.
TEST(VirtualGossip, GapAndDistanceOfEachEdgeAreCounted) {
  const End end = gossiped(options_of("ring", 8, false), {}, 2000);
  for (const GossipStatistics& mine : end.statistics) {
    EXPECT_NEAR(static_cast<double>(mine.averaged) / static_cast<double>(mine.gradients), 1, 0.1);
    for (const auto& edge : mine.neighbours) {
      EXPECT_NEAR(edge.gap, 2, 0.25);   // an edge is used half as often as a worker averages
      EXPECT_GT(edge.longest_gap, 8U);  // among 1000, a longer one has a probability of 1e-8
      EXPECT_LT(edge.longest_gap, 50U);
      EXPECT_LT(edge.distance, 1e-6);  // they have come together
    }
  }
}

// The distance at the first averaging, at which each worker still had its first values.
TEST(VirtualGossip, TheDistanceOfAnEdgeIsThatOfWhatWasSent) {
  for (const Wire wire : {Wire::fp32, Wire::fp16}) {
    GossipOptions options = options_of("complete", 2, false, wire);
    options.rates.rate = 0.2;
    const Values begin = gossiped(options, {}, 0).x;
    End end;
    for (int gradients = 1; end.statistics.empty() || end.statistics[0].averaged == 0; ++gradients)
      end = gossiped(options, {}, gradients);
    ASSERT_EQ(end.statistics[0].averaged, 1U);
    double squares = 0;
    for (std::size_t k = 0; k < kSize; ++k)
      squares += (double{begin[0][k]} - begin[1][k]) * (double{begin[0][k]} - begin[1][k]);
    for (const GossipStatistics& mine : end.statistics)
      EXPECT_NEAR(mine.neighbours[0].distance, std::sqrt(squares / kSize), wire == Wire::fp32 ? 1e-6 : 1e-3);
  }
}

// Each edge is used as often as the rates say, if all train equally fast and if one is four times
// slower. An edge's own count then follows from its ends' gradients. The test is Pearson's
// chi-square with as many degrees of freedom as edges. A chi square of so many degrees of freedom
// exceeds this value once in 1000 (Wilson & Hilferty 1931).
double once_in_1000(double degrees) {
  const double part = 2 / (9 * degrees);
  return degrees * std::pow(1 - part + 3.09 * std::sqrt(part), 3);
}

// In static-exponential, one neighbour in five is met twice as often as the others.
TEST(VirtualGossip, EveryEdgeIsUsedAsOftenAsTheTheoryAssumes) {
  for (const auto& [topology, n] : {std::pair("ring", 4), {"torus", 9}, {"static-exponential", 8}}) {
    for (const int slower : {1, 4}) {
      const GossipOptions options{.rates = pair_rates(make_schedule(topology, n), 1), .seed = 5};
      VirtualHub cluster(n, 1e9, 50us);
      std::vector<GossipStatistics> statistics(static_cast<std::size_t>(n));
      cluster.run([&](int rank) {
        Gossiper gossip(cluster, rank, options);
        const Time end = cluster.time->now() + 40s;
        while (cluster.time->now() < end) {
          cluster.time->sleep((rank == 0 ? slower : 1) * 8ms);
          gossip->stepped();
        }
        gossip->pause();
        statistics[static_cast<std::size_t>(rank)] = gossip->statistics();
        cluster.time->sleep(1s);
      });
      // rate / 2 p_ij of i's gradients.
      Expected expected;
      for (int i = 0; i < n; ++i) {
        const auto gradients = static_cast<double>(statistics[static_cast<std::size_t>(i)].gradients);
        for (const Neighbour& j : options.rates.asks[static_cast<std::size_t>(i)])
          expected[std::minmax(i, j.rank)] += 0.5 * j.weight * gradients;
      }
      EXPECT_LT(chi_square(statistics, expected), once_in_1000(static_cast<double>(expected.size())))
          << topology << " " << slower;
    }
  }
}

// All pause after every gradient, for longer than one takes. The clock's events of that time come
// later.
TEST(VirtualGossip, PausesCostNoAveragings) {
  const GossipOptions options = options_of("complete", 4, false);
  VirtualHub cluster(4);
  double averaged = 0;
  constexpr int kGradients = 200;
  cluster.run([&](int rank) {
    Gossiper gossip(cluster, rank, options);
    for (int k = 0; k < kGradients; ++k) {
      cluster.time->sleep(kGradient);
      gossip->stepped();
      gossip->pause();
      cluster.time->sleep(3 * kGradient);
      gossip->resume();
    }
    averaged += static_cast<double>(gossip->statistics().averaged);
    cluster.time->sleep(1s);
  });
  EXPECT_NEAR(averaged / (4 * kGradients), 1, 0.15);
}

}  // namespace
}  // namespace starling
