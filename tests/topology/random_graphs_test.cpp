// EquiTopo's graphs and Erdos-Renyi's.
#include <set>

#include <gmock/gmock.h>

#include "starling/topology/spectrum.h"
#include "tests/topology/rounds.h"

namespace starling {
namespace {

// The mean over many rounds of |W - 11^T/n|_F^2 / (n - 1): the factor of the squared distance to
// the mean per round.
double left_by_a_round(const Schedule& schedule) {
  double sum = 0;
  for (const Graph& round : schedule.rounds) {
    for (double w : mixing_matrix(round).values)
      sum += (w - 1.0 / schedule.workers()) * (w - 1.0 / schedule.workers());
  }
  return sum / static_cast<double>(schedule.rounds.size()) / (schedule.workers() - 1);
}

TEST(EquiStatic, WithAllShiftsItIsTheCompleteGraph) {
  for (int n : {2, 5, 9}) {
    for (const std::string name : {"d-equistatic-", "u-equistatic-"}) {
      EXPECT_EQ(make_schedule(name + std::to_string(n - 1), n).fingerprint(),
                make_schedule("complete", n).fingerprint());
      EXPECT_EQ(make_schedule(name + "1000000", n).fingerprint(), make_schedule("complete", n).fingerprint());
    }
  }
}

TEST(EquiStatic, IsACirculantOfMShiftsAndItsSymmetricPart) {
  for (int n : {7, 16, 40}) {
    for (int M : {1, 2, 5}) {
      SCOPED_TRACE(testing::Message() << n << ", " << M);
      const Graph D = make_schedule("d-equistatic-" + std::to_string(M), n).rounds[0];
      const Graph U = make_schedule("u-equistatic-" + std::to_string(M), n).rounds[0];
      EXPECT_TRUE(U.symmetric());
      for (int i = 0; i < n; ++i) {
        ASSERT_EQ(D.neighbours[i].size(), static_cast<std::size_t>(M));
        EXPECT_LE(U.neighbours[i].size(), static_cast<std::size_t>(2 * M));
        EXPECT_NEAR(D.self_weight(i), 1.0 / n, 1e-12);
        EXPECT_NEAR(U.self_weight(i), 1.0 / n, 1e-12);
        for (int j = 0; j < n; ++j) {
          if (i == j) continue;
          EXPECT_EQ(D.weight(i, j), D.weight(0, (j - i + n) % n));
          EXPECT_NEAR(U.weight(i, j), (D.weight(i, j) + D.weight(j, i)) / 2, 1e-15);
        }
      }
    }
  }
}

TEST(EquiDyn, EveryRoundIsOneShiftAndAllShiftsCome) {
  for (int n : {3, 6, 10}) {
    const Schedule schedule = make_schedule("od-equidyn", n);
    std::set<int> shifts;
    for (const Graph& round : schedule.rounds) {
      const int u = (round.neighbours[0].at(0).rank + n) % n;
      shifts.insert(u);
      for (int i = 0; i < n; ++i)
        EXPECT_EQ(round.neighbours[i], (std::vector<Neighbour>{{(i + u) % n, 0.5}}));
    }
    EXPECT_EQ(shifts.size(), n - 1u);
  }
}

TEST(EquiDyn, ContractsByItsClosedForm) {
  for (int n : {4, 17, 64}) {
    // For independent values |W - J|_F^2 / (n - 1) is the same for every shift.
    EXPECT_NEAR(left_by_a_round(make_schedule("od-equidyn", n)), (n - 2.0) / (2 * (n - 1.0)), 1e-10) << n;
  }
}

TEST(EquiDyn, PairsAreAtOneDistanceAndNoneIsLeftThatCouldBePaired) {
  for (int n : {3, 4, 7, 12, 33}) {
    const Schedule schedule = make_schedule("ou-equidyn", n);
    for (const Graph& round : schedule.rounds) {
      std::set<int> distances;
      for (int i = 0; i < n; ++i) {
        ASSERT_LE(round.neighbours[i].size(), 1u);
        for (const Neighbour& j : round.neighbours[i]) {
          EXPECT_EQ(j.weight, 0.5);
          distances.insert(std::min((j.rank - i + n) % n, (i - j.rank + n) % n));
        }
      }
      ASSERT_EQ(distances.size(), 1u);
      const int u = *distances.begin();
      for (int i = 0; i < n; ++i)
        EXPECT_FALSE(round.neighbours[i].empty() && round.neighbours[(i + u) % n].empty()) << n << ", " << i;
    }
    // At least two of three are paired, and each pair takes half of its share.
    EXPECT_LT(left_by_a_round(schedule), 0.7) << n;
    EXPECT_LT(rounds_to_consensus(schedule)->rounds, 120) << n;
  }
}

TEST(EquiDyn, DependsOnTheSeedAlone) {
  // The same on every machine. These values were recorded once.
  EXPECT_EQ(make_schedule("od-equidyn", 9).fingerprint(), make_schedule("od-equidyn-0", 9).fingerprint());
  EXPECT_NE(make_schedule("od-equidyn", 9).fingerprint(), make_schedule("od-equidyn-1", 9).fingerprint());
  EXPECT_NE(make_schedule("ou-equidyn", 9).fingerprint(), make_schedule("ou-equidyn-1", 9).fingerprint());
  EXPECT_EQ(edges(make_schedule("ou-equidyn", 6).rounds[0]), "(0,5)(1,2)(3,4)");
  EXPECT_EQ(edges(make_schedule("ou-equidyn-7", 9).rounds[999]), "(0,2)(1,3)(5,7)(6,8)");
}

TEST(ErdosRenyi, HangsTogetherWithAboutTwoLogNPeers) {
  for (int n : {3, 8, 40, 150}) {
    double peers = 0, expected = 0;
    for (int seed = 0; seed < 10; ++seed) {
      const Schedule schedule = make_schedule("erdos-renyi-" + std::to_string(seed), n);
      ASSERT_EQ(schedule.rounds.size(), 1u);
      EXPECT_TRUE(schedule.rounds[0].symmetric());
      EXPECT_LT(second_singular_value(mixing_matrix(schedule.rounds[0])), 1 - 1e-6) << n << ", " << seed;
      for (const auto& row : schedule.rounds[0].neighbours) peers += static_cast<double>(row.size());
      expected += n * std::min(n - 1.0, 2 * std::log(n) / n * (n - 1));
    }
    // Edges are counted twice. Four standard deviations, and more for the few graphs that were
    // drawn again.
    EXPECT_NEAR(peers, expected, 4 * std::sqrt(2 * expected) + 0.1 * expected) << n;
  }
  EXPECT_EQ(make_schedule("erdos-renyi", 20).fingerprint(), make_schedule("erdos-renyi-0", 20).fingerprint());
  EXPECT_NE(make_schedule("erdos-renyi", 20).fingerprint(), make_schedule("erdos-renyi-1", 20).fingerprint());
}

}  // namespace
}  // namespace starling
