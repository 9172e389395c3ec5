// A neighbour whose values jump: what the guard refuses, whom it tells, and what that costs.
#include "starling/exchange/jump_guard.h"

#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/exchange/flock.h"

namespace starling {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kFactor = 20;
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// The guard of worker 0 with neighbours 1, 2 and 3.
struct Guarded {
  // It has taken so many usual distances.
  explicit Guarded(std::size_t usual = 0) { takes_usual(usual); }
  bool refuses(int rank, double distance, std::uint32_t block = 0) {
    ++round;
    return guard.refuses(rank, {round, block}, round, distance);
  }
  // So many distances of 1, from both by turns. Returns whether all are taken.
  bool takes_usual(std::size_t times) {
    bool all = true;
    for (std::size_t k = 0; k < times; ++k) all &= !refuses(1 + static_cast<int>(k % 2), 1);
    return all;
  }
  struct Told {
    int rank;
    SwapId id;
    double distance;
    bool others;
    bool operator==(const Told&) const = default;
  };
  std::vector<Told> told;
  LogLines lines;
  JumpGuard guard{JumpGuard::Options{.factor = kFactor,
                                     .blocks = 2,
                                     .neighbours = {1, 2, 3},
                                     .log = lines.log(),
                                     .tell = [this](int rank, SwapId id, double distance, bool others) {
                                       told.push_back({rank, id, distance, others});
                                     }}};
  std::uint64_t round = 0;
};

TEST(JumpGuard, RefusesWhatIsMuchFartherThanUsual) {
  struct Case {
    double distance;
    bool refused;
  };
  for (const auto& [distance, refused] : {Case{0, false},
                                          {1, false},
                                          {kFactor, false},
                                          {kFactor * 1.01, true},
                                          {1e30, true},
                                          {kInfinite, true},
                                          {std::nan(""), true}}) {
    SCOPED_TRACE(distance);
    Guarded one;
    EXPECT_TRUE(one.takes_usual(UsualDistance::kEnough));
    EXPECT_EQ(one.refuses(1, distance), refused);
    EXPECT_FALSE(one.refuses(1, distance, 1)) << "nothing is known of the other block";
    EXPECT_EQ(one.lines.all().size(), refused ? 1U : 0U);
  }
}

TEST(JumpGuard, RefusesNothingBeforeItKnowsWhatIsUsual) {
  Guarded one;
  for (int k = 0; k < 100; ++k) ASSERT_FALSE(one.refuses(1, 0)) << "equal workers say nothing";
  EXPECT_TRUE(one.takes_usual(UsualDistance::kEnough - 1));
  EXPECT_FALSE(one.refuses(1, 1e6));
  EXPECT_TRUE(one.refuses(1, 1e6));
}

TEST(JumpGuard, FollowsDistancesThatGrowByAndBy) {
  Guarded one;
  for (int k = 0; k < 200; ++k) ASSERT_FALSE(one.refuses(1 + k % 2, std::pow(1.1, k))) << k;
  for (int k = 200; k > 0; --k) ASSERT_FALSE(one.refuses(1 + k % 2, std::pow(1.1, k))) << k;
}

// They make the two equal, until one of them makes a step.
TEST(JumpGuard, LearnsOnceFromSwapsWithoutStepsBetween) {
  Guarded one(100);
  for (int k = 0; k < 100; ++k) ASSERT_FALSE(one.guard.refuses(1, {++one.round, 0}, 101, std::pow(0.5, k)));
  EXPECT_FALSE(one.refuses(1, kFactor));
}

TEST(JumpGuard, ALastingChangeOfAllBecomesUsual) {
  Guarded one(100);
  for (std::size_t k = 0; k < UsualDistance::kEnough; ++k)
    EXPECT_TRUE(one.refuses(1 + static_cast<int>(k % 2), 1e6)) << k;
  EXPECT_FALSE(one.refuses(1, 1e6));
  EXPECT_FALSE(one.refuses(2, 1));
  for (const Guarded::Told& told : one.told)
    EXPECT_FALSE(told.others) << "nobody knows which of them has jumped";
  EXPECT_EQ(one.lines.all().size(), 2U) << "one for each neighbour";
}

TEST(JumpGuard, OneNeighbourThatJumpsIsNoChangeOfAll) {
  Guarded one(100);
  for (int k = 0; k < 100; ++k) ASSERT_TRUE(one.refuses(1, 1e6)) << "the other one is slow";
  one.guard.lost(2);
  EXPECT_TRUE(one.refuses(1, 1e6));
  EXPECT_FALSE(one.refuses(1, 1e6)) << "the other one is gone";
}

TEST(JumpGuard, AWorkerThatHasJumpedTakesNothingFromOthers) {
  Guarded one(100);
  for (int k = 0; k < 100; ++k) {
    const int rank = 1 + k % 2;
    ASSERT_TRUE(one.refuses(rank, 1e6)) << k;
    one.guard.was_refused(rank, {one.round, 0}, 1e6, /*others=*/k % 10 == 0);
  }
}

TEST(JumpGuard, ANeighbourThatStaysAwayIsRefusedAndToldWhileOthersAreUsual) {
  Guarded one(100);
  for (int k = 0; k < 100; ++k) {
    ASSERT_TRUE(one.refuses(1, 1e6));
    ASSERT_FALSE(one.refuses(2, 1));
  }
  ASSERT_EQ(one.told.size(), 100U);
  for (std::uint64_t k = 0; k < 100; ++k)
    EXPECT_EQ(one.told[k], (Guarded::Told{1, {101 + 2 * k, 0}, 1e6, k + 1 >= JumpGuard::kStays})) << k;
  EXPECT_THAT(
      one.lines.all(),
      ElementsAre("worker 1's block 0 jumps in round 101: it is 1e+06 times as far from this worker's "
                  "as usual, and jump_guard is 20: not mixed (its later ones are counted only)"));
}

// The other has refused this worker's block, and so aborted the swap, before its own has come.
TEST(JumpGuard, JudgesByTheDistanceThatTheOtherTells) {
  Guarded one(100);
  for (std::uint64_t round = 101; round < 110; ++round) {
    one.guard.was_refused(1, {round, 0}, 1e6, false);
    one.guard.was_refused(1, {round, 0}, 1e6, false);  // of a block that was judged
    one.guard.was_refused(3, {round, 0}, 2, false);    // this worker would have taken it
    EXPECT_FALSE(one.guard.refuses(2, {round, 0}, round, 1));
  }
  ASSERT_EQ(one.told.size(), 9U);
  for (std::uint64_t k = 0; k < 9; ++k)
    EXPECT_EQ(one.told[k], (Guarded::Told{1, {101 + k, 0}, 1e6, k + 1 >= JumpGuard::kStays})) << k;
  EXPECT_THAT(one.lines.all(), ElementsAre(HasSubstr("worker 1's block 0 jumps in round 101")));
  EXPECT_NE(one.guard.standing(), Standing::apart);
}

TEST(JumpGuard, StrangeWordsOfANeighbourDoNoHarm) {
  Guarded one(100);
  std::uint64_t round = std::numeric_limits<std::uint64_t>::max() - 1000;
  for (int times = 0; times < 100; ++times) {
    for (const double distance : {std::nan(""), kInfinite, -kInfinite, -1e6, 0.0})
      one.guard.was_refused(1, {++round, times % 2 == 0 ? 0U : ~0U}, distance, true);
  }
  EXPECT_NE(one.guard.standing(), Standing::apart) << "it is one of three";
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(one.refuses(rank, kFactor * 1.01)) << rank;
    EXPECT_FALSE(one.refuses(rank, 1)) << rank;
  }
}

TEST(JumpGuard, AWorkerStandsApartIfHalfOfItsNeighboursTellIt) {
  Guarded one;
  one.guard.was_refused(1, {5, 0}, 1e6, true);
  one.guard.was_refused(1, {6, 0}, 1e6, true);
  one.guard.was_refused(2, {6, 0}, 1e6, false);
  one.guard.was_refused(2, {6, 1}, 1e6, true);  // another block
  one.guard.was_refused(4, {6, 0}, 1e6, true);  // no neighbour
  one.guard.was_refused(2, {6, 7}, 1e6, true);  // no block
  EXPECT_NE(one.guard.standing(), Standing::apart);
  one.guard.was_refused(3, {6, 0}, 1e6, true);
  EXPECT_EQ(one.guard.standing(), Standing::apart);
  EXPECT_THAT(one.lines.all(),
              ElementsAre("this worker's block 0 has jumped away from the others': workers 1, 3 refuse it, "
                          "but not those of others"));
  one.guard.committed(3, 1);
  EXPECT_EQ(one.guard.standing(), Standing::apart);
  one.guard.committed(3, 0);  // it has taken one again
  EXPECT_NE(one.guard.standing(), Standing::apart);
  one.guard.was_refused(3, {7, 0}, 1e6, true);
  EXPECT_EQ(one.guard.standing(), Standing::apart);
  one.guard.forget_jumps();
  EXPECT_NE(one.guard.standing(), Standing::apart);
  one.guard.was_refused(3, {8, 0}, 1e6, true);
  EXPECT_NE(one.guard.standing(), Standing::apart);
  EXPECT_THAT(one.told, IsEmpty());
}

// Both ends of an edge see the jump. The one with more than half of such edges is doubtful.
TEST(JumpGuard, AWorkerIsDoubtfulWhileTheLastBlocksOfMostNeighboursJump) {
  Guarded one(100);
  EXPECT_TRUE(one.refuses(1, 1e6));
  EXPECT_TRUE(one.refuses(1, 1e6)) << "one of three";
  EXPECT_EQ(one.guard.standing(), Standing::usual);
  one.guard.was_refused(3, {++one.round, 0}, 1e6, false);  // before it has come
  EXPECT_EQ(one.guard.standing(), Standing::doubtful);
  EXPECT_FALSE(one.refuses(1, 1));
  EXPECT_EQ(one.guard.standing(), Standing::usual);
  EXPECT_TRUE(one.refuses(1, 1e6));
  EXPECT_EQ(one.guard.standing(), Standing::doubtful);
  one.guard.committed(3, 0);  // it has taken one, and sends none
  EXPECT_EQ(one.guard.standing(), Standing::usual);
  one.guard.forget_jumps();
  one.guard.lost(2);
  EXPECT_TRUE(one.refuses(1, 1e6));
  EXPECT_EQ(one.guard.standing(), Standing::usual) << "one of two";
  one.guard.lost(3);
  EXPECT_EQ(one.guard.standing(), Standing::doubtful) << "the only one";
}

TEST(JumpGuard, TheNextGuardKnowsWhatIsUsual) {
  Guarded one(UsualDistance::kEnough - 1);
  const auto next = [&](std::uint64_t round, double distance) {
    JumpGuard guard(JumpGuard::Options{.factor = kFactor,
                                       .blocks = 3,
                                       .neighbours = {2},
                                       .usual = one.guard.usual(),
                                       .log = one.lines.log(),
                                       .tell = [](int, SwapId, double, bool) {}});
    EXPECT_FALSE(guard.refuses(2, {round, 1}, round, 1e6)) << "nothing is known of the other block";
    EXPECT_FALSE(guard.refuses(2, {round, 2}, round, 1e6)) << "a new block";
    return guard.refuses(2, {round, 0}, round, distance);
  };
  EXPECT_FALSE(next(1, 1e6));
  one.takes_usual(1);
  EXPECT_TRUE(next(1, 1e6));
  EXPECT_FALSE(next(1, 2));
}

TEST(JumpGuard, CostsNothingWhereItIsOff) {
  JumpGuard guard(JumpGuard::Options{.blocks = 1, .neighbours = {1}});
  for (std::uint64_t k = 0; k < 100; ++k) EXPECT_FALSE(guard.refuses(1, {k, 0}, k, k < 50 ? 1 : 1e9));
  guard.was_refused(1, {100, 0}, 1e9, true);
  EXPECT_EQ(guard.standing(), Standing::usual);
}

// ---------------------------------------------------------------- whole workers

struct Corruption {
  const char* topology;
  Wire wire;
  int one_in;
  float to;  // one value of worker 2 becomes this
  double jump_guard;
};

// Each step moves some values a little.
struct Trained : Flock {
  explicit Trained(const Corruption& of, int n)
      : Flock(make_schedule(of.topology, n), {}, of.wire, of.one_in, of.jump_guard) {}
  void train(int times) {
    std::normal_distribution<float> change(0, 0.1F);
    for (int t = 0; t < times; ++t) {
      for (auto& worker : workers) {
        for (auto& block : worker->x) {
          for (std::size_t k = 0; k < block.size(); k += 16) {
            const float before = block[k];
            block[k] += change(random);
            learned += double{block[k]} - before;
          }
        }
      }
      steps(1);
    }
  }
  std::mt19937_64 random{1};
  double learned = 0;
};

float largest(const std::vector<float>& values) {
  return std::abs(*std::ranges::max_element(values, {}, [](float v) { return std::abs(v); }));
}

TEST(JumpGuard, KeepsACorruptedNeighbourOutAndTheSum) {
  for (const Corruption& of : {Corruption{"ring", Wire::fp32, 1, 1e6F, kFactor},
                               {"ring", Wire::fp32, 1, 1e6F, 0},
                               {"base-2", Wire::bf16, 1, -1e6F, kFactor},
                               {"ring", Wire::fp16, 1, 6e4F, kFactor},
                               {"ring", Wire::fp32, 3, 1e6F, kFactor},
                               {"complete", Wire::fp32, 1, 1e6F, kFactor}}) {
    SCOPED_TRACE(fmt::format("{} {} one in {}, to {}, guard {}", of.topology, name_of(of.wire), of.one_in,
                             of.to, of.jump_guard));
    constexpr int kMany = 4;
    Trained flock(of, kMany);
    flock.train(40 * of.one_in);
    for (int i = 0; i < kMany; ++i) {
      EXPECT_EQ(flock[i].exchange.statistics().jumped, 0U);
      EXPECT_EQ(flock[i].exchange.statistics().aborted, 0U);
    }
    flock[2].x[0][5] = of.to;
    const double before = flock.sum() - flock.learned;
    const bool guarded = of.jump_guard > 0;
    flock.train(2);  // in base-2 each then has met both of its neighbours
    flock.everyone([](Worker& w) { w.exchange.decide(); });
    if (of.one_in == 1) {  // else a mask may leave the wrong value out
      EXPECT_EQ(flock[2].exchange.standing() == Standing::doubtful, guarded);
    }
    for (const int i : {0, 1, 3}) EXPECT_EQ(flock[i].exchange.standing(), Standing::usual);
    flock.train(12 * of.one_in);
    std::uint64_t refused = 0;
    for (const int i : {0, 1, 3}) {
      refused += flock[i].exchange.statistics().jumped;
      EXPECT_EQ(largest(flock[i].x[0]) < 100, guarded) << "worker " << i;
      const auto named = std::ranges::count_if(flock[i].said(), [](const std::string& line) {
        return line.find("worker 2's block 0 jumps") != std::string::npos;
      });
      EXPECT_LE(named, 1);
    }
    EXPECT_EQ(refused > 0, guarded);
    // If a mask chooses the values, most of its blocks are without the wrong one.
    if (guarded && of.one_in == 1) {
      EXPECT_TRUE(eventually([&] { return flock[2].exchange.standing() == Standing::apart; }));
      EXPECT_THAT(flock[2].said(), Contains(HasSubstr("this worker's block 0 has jumped away")));
    }
    for (const int i : {0, 1, 3}) EXPECT_EQ(flock[i].exchange.standing(), Standing::usual);
    flock.everyone([](Worker& w) { w.end(); });
    EXPECT_NEAR(flock.sum() - flock.learned, before, 1 + 1e-5 * std::abs(double{of.to}));
  }
}

}  // namespace
}  // namespace starling
