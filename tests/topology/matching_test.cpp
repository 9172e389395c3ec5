#include "starling/topology/matching.h"

#include <algorithm>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "starling/topology/families.h"
#include "starling/topology/spectrum.h"
#include "starling/topology/weights.h"
#include "tests/refusal.h"
#include "tests/topology/matrices.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

// The sum of the pairs' weights; -1 if they are no matching.
std::int64_t weight_of(const EdgeWeights& weights, const std::vector<int>& mates) {
  std::int64_t sum = 0;
  for (int i = 0; i < weights.n; ++i) {
    const int j = mates[i];
    if (j < 0) continue;
    if (j >= weights.n || j == i || mates[j] != i || weights.at(i, j) <= 0) return -1;
    if (i < j) sum += weights.at(i, j);
  }
  return sum;
}

// For each set of vertices: its heaviest matching, by the choices for its lowest vertex.
std::int64_t heaviest_by_all(const EdgeWeights& weights) {
  std::vector<std::int64_t> best(std::size_t{1} << weights.n);
  for (std::size_t set = 1; set < best.size(); ++set) {
    int i = 0;
    while ((set >> i & 1) == 0) ++i;
    best[set] = best[set & (set - 1)];
    for (int j = i + 1; j < weights.n; ++j) {
      if ((set >> j & 1) == 0 || weights.at(i, j) <= 0) continue;
      const std::size_t rest = set & (set - 1) & ~(std::size_t{1} << j);
      best[set] = std::max(best[set], best[rest] + weights.at(i, j));
    }
  }
  return best.back();
}

TEST(Matching, IsAsHeavyAsTheBestOfAll) {
  std::mt19937_64 random(11);
  for (int trial = 0; trial < 4000; ++trial) {
    const int n = 1 + static_cast<int>(random() % 12);
    const int density = 1 + static_cast<int>(random() % 4);       // edges: this many of four
    const std::int64_t most = trial % 3 == 0 ? 3 : 1000'000'000;  // many ties, or none
    EdgeWeights weights(n);
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) {
        if (static_cast<int>(random() % 4) < density)
          weights.set(i, j, 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)));
      }
    }
    ASSERT_EQ(weight_of(weights, heaviest_matching(weights)), heaviest_by_all(weights)) << "trial " << trial;
  }
}

TEST(Matching, OfLargeGraphsEndsAndIsNoWorseThanTheGreedyOne) {
  std::mt19937_64 random(12);
  for (int n : {60, 101}) {
    for (const std::int64_t most : {std::int64_t{2}, std::int64_t{1} << 40}) {
      EdgeWeights weights(n);
      std::vector<std::tuple<std::int64_t, int, int>> all;
      for (int i = 0; i < n; ++i) {
        for (int j = i + 1; j < n; ++j) {
          weights.set(i, j, 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most)));
          all.emplace_back(weights.at(i, j), i, j);
        }
      }
      std::sort(all.rbegin(), all.rend());
      std::vector<int> greedy(n, -1);
      for (const auto& [w, i, j] : all) {
        if (greedy[i] < 0 && greedy[j] < 0) greedy[i] = j, greedy[j] = i;
      }
      const std::vector<int> mates = heaviest_matching(weights);
      EXPECT_GE(weight_of(weights, mates), weight_of(weights, greedy));
      EXPECT_LE(std::count(mates.begin(), mates.end(), -1), n % 2);
    }
  }
}

using Bandwidth = std::vector<std::vector<double>>;

// Nodes of L workers: `fast` inside, `slow` between them.
Bandwidth nodes(int n, int L, double fast, double slow) {
  Bandwidth b(n, std::vector<double>(n));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) b[i][j] = i / L == j / L ? fast : slow;
  }
  return b;
}

TEST(BandwidthMatching, TakesFastLinksFirstAndSlowOnesWhenTheyMust) {
  const Rounds rounds = bandwidth_matching(nodes(8, 4, 10, 1));
  for (int t = 0; t < 2; ++t) {  // each node of four agrees internally after two rounds of pairs
    for (int i = 0; i < 8; ++i) {
      ASSERT_EQ(rounds[t].neighbours[i].size(), 1u);
      EXPECT_EQ(rounds[t].neighbours[i][0].rank / 4, i / 4) << t;
    }
  }
  for (int i = 0; i < 8; ++i) EXPECT_NE(rounds[2].neighbours[i].at(0).rank / 4, i / 4);
  EXPECT_EQ(rounds.size(), 3u);  // and then all hold the mean
  EXPECT_TRUE(averaging(period_product({"", rounds})));
}

TEST(BandwidthMatching, ReachesConsensusOverAnyLinksThatHangTogether) {
  std::mt19937_64 random(13);
  for (int trial = 0; trial < 60; ++trial) {
    const int n = 2 + static_cast<int>(random() % 14);
    Bandwidth b(n, std::vector<double>(n));
    for (int i = 1; i < n; ++i) {  // a tree, and some more links, of four orders of magnitude
      b[i][static_cast<int>(random() % static_cast<unsigned>(i))] = 1;
      for (int j = 0; j < i; ++j) {
        if (b[i][j] == 0 && random() % 3 != 0) continue;
        b[i][j] = std::pow(10.0, static_cast<double>(random() % 4001) / 1000);
        b[j][i] = 2 * b[i][j];
      }
    }
    const Rounds rounds = bandwidth_matching(b);
    for (const Graph& round : rounds) {
      ASSERT_TRUE(round.symmetric());
      ASSERT_LE(most_peers(round), 1);
      for (int i = 0; i < n; ++i) {
        for (const Neighbour& j : round.neighbours[i]) {
          EXPECT_EQ(j.weight, 0.5);
          EXPECT_GT(b[i][j.rank], 0) << "no link";
        }
      }
    }
    ASSERT_LT(rounds.size(), 1000u);
    EXPECT_LT(second_singular_value(period_product({"", rounds})), 0.2) << "trial " << trial;
  }
}

TEST(BandwidthMatching, NeedsLinksBothWays) {
  Bandwidth b = nodes(3, 1, 1, 5);
  b[2][0] = b[1][2] = 0;
  EXPECT_EQ(refusal<UsageError>([&] { bandwidth_matching(b); }),
            "worker 2 cannot be reached from worker 0: links with a bandwidth above 0 in both directions "
            "must connect them");
  EXPECT_EQ(bandwidth_matching({{0}}).size(), 1u);
}

}  // namespace
}  // namespace starling
