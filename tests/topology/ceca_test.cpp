// CECA-2P against the paper's two vectors in plain loops.
#include "starling/topology/ceca.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "starling/topology/spectrum.h"
#include "tests/topology/matrices.h"

namespace starling {
namespace {

using Vector = std::vector<double>;  // by worker

struct Two {
  Vector x, h;
};

// A round as in the paper. `lost`: this worker receives nothing, and uses its own sent value
// instead.
Two after(const Two& now, const CecaRound& round, int lost = -1) {
  const int n = static_cast<int>(now.x.size()), e = round.e;
  Two next = now;
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const int from = i == lost ? i : round.sends_x ? i - (e + 1) : i - e;
    const double y = (round.sends_x ? now.x : now.h)[static_cast<std::size_t>((from + n) % n)];
    if (round.sends_x) {
      next.x[at] = (now.x[at] + y) / 2;
      next.h[at] = (e * now.h[at] + (e + 1) * y) / (2 * e + 1);
    } else {
      next.x[at] = ((e + 1) * now.x[at] + e * y) / (2 * e + 1);
      next.h[at] = (now.h[at] + y) / 2;
    }
  }
  return next;
}

double sum(const Vector& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

// H is not used.
Two start(int n) {
  Two two{Vector(static_cast<std::size_t>(n)), Vector(static_cast<std::size_t>(n), 1e9)};
  for (int i = 0; i < n; ++i) two.x[static_cast<std::size_t>(i)] = std::sin(1 + 2.7 * i);
  return two;
}

TEST(Ceca2P, IsExactAfterTheLogarithmOfAnyNumberOfWorkers) {
  for (int n = 2; n <= 129; ++n) {
    const auto rounds = ceca_2p_rounds(n);
    EXPECT_EQ(rounds.size(), std::bit_width(static_cast<unsigned>(n - 1))) << n;  // ceil(log2 n)
    Two two = start(n);
    const double mean = sum(two.x) / n;
    for (const CecaRound& round : rounds) two = after(two, round);
    for (const double x : two.x) ASSERT_NEAR(x, mean, 1e-12) << n;
    const Schedule schedule = ceca_2p(n);
    ASSERT_EQ(schedule.rounds.size(), rounds.size());
    for (const Graph& graph : schedule.rounds) {
      EXPECT_TRUE(doubly_stochastic(mixing_matrix(graph))) << n;
      for (const auto& row : graph.neighbours) EXPECT_EQ(row.size(), 1U) << n;
    }
  }
  EXPECT_EQ(ceca_2p_rounds(1), std::vector<CecaRound>{{}});
  EXPECT_TRUE(ceca_2p(1).rounds.front().neighbours.front().empty());
}

// A late value is added as s and d, in any later round. Both sums then have their ordinary values.
TEST(Ceca2P, WhatIsLateRestoresBothSums) {
  for (const int n : {2, 3, 5, 6, 7, 11, 17}) {
    const auto rounds = ceca_2p_rounds(n);
    const auto at = [&](std::uint64_t r) { return rounds[(r - 1) % rounds.size()]; };
    for (std::uint64_t from = 1; from <= rounds.size(); ++from) {
      for (std::uint64_t now = from; now <= from + 2 * rounds.size(); ++now) {
        Two two = start(n);
        const double all = sum(two.x);
        double difference = 0;
        for (std::uint64_t r = 1; r <= now; ++r) {
          const int lost = r == from ? 1 : -1;
          if (r == from) {
            const Vector& sent = at(r).sends_x ? two.x : two.h;
            difference = sent[static_cast<std::size_t>((1 + n - at(r).distance()) % n)] - sent[1];
          }
          two = after(two, at(r), lost);
        }
        const CecaShares shares = late_shares(rounds, from, now);
        const bool x = at(now).sends_x;
        (x ? two.x : two.h)[2 % n] += shares.s * difference;
        (x ? two.h : two.x)[2 % n] += (shares.s + shares.d) * difference;
        EXPECT_NEAR(sum(two.x), all, 1e-11) << n << " from " << from << " now " << now;
        EXPECT_NEAR(sum(two.h), all, 1e-11) << n << " from " << from << " now " << now;
      }
    }
  }
}

// Rounds without arrivals, as a sleeping worker has skipped them.
TEST(Ceca2P, SkippedRoundsAreThoseWithoutNeighbours) {
  for (const int n : {3, 5, 6, 11}) {
    const auto rounds = ceca_2p_rounds(n);
    const auto at = [&](std::uint64_t r) { return rounds[(r - 1) % rounds.size()]; };
    for (std::uint64_t now = 1; now <= rounds.size(); ++now) {
      for (std::uint64_t next = now + 1; next <= now + 2 * rounds.size(); ++next) {
        Two two{{0.3}, {-2}};
        const auto s_and_d = [&](std::uint64_t r) {
          return at(r).sends_x ? std::pair(two.x[0], two.h[0] - two.x[0])
                               : std::pair(two.h[0], two.x[0] - two.h[0]);
        };
        const auto [s, d] = s_and_d(now);
        const CecaShares shares = shares_of_d(rounds, now, next);
        for (std::uint64_t r = now + 1; r < next; ++r) two = after(two, at(r), 0);
        const auto [s_next, d_next] = s_and_d(next);
        EXPECT_NEAR(s + shares.s * d, s_next, 1e-12) << n << " " << now << " " << next;
        EXPECT_NEAR(shares.d * d, d_next, 1e-12) << n << " " << now << " " << next;
      }
    }
  }
}

}  // namespace
}  // namespace starling
