// The masks of random-k: their choice, its frequency, and that no edge misses any value.
#include "starling/kernels/mask.h"

#include <set>

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Mask, StretchesAndCountsAreThoseOfEachValue) {
  for (const std::uint32_t one_in : {1U, 2U, 3U, 8U, 1000U}) {
    for (const std::uint32_t turn : {0U, 1U, one_in / 2, one_in - 1}) {
      if (turn >= one_in) continue;
      const Mask mask{one_in, turn};
      const std::size_t n = 3 * Mask::kRun * one_in + Mask::kRun / 2;
      std::size_t chosen = 0;
      for (std::size_t k = 0; k < n; ++k) {
        ASSERT_EQ(mask.chosen_of(k), chosen) << one_in << " " << turn << " " << k;
        const bool is = k / Mask::kRun % one_in == turn;  // as the header says
        ASSERT_EQ(mask.chooses(k), is);
        ASSERT_GT(mask.stretch_end(k), k);
        const bool goes_on = one_in == 1 || k + 1 < mask.stretch_end(k);
        ASSERT_EQ(mask.chooses(k + 1), goes_on ? is : !is);
        chosen += is ? 1 : 0;
      }
    }
  }
}

// For any common divisor of the period and one_in.
TEST(Mask, EveryPlaceOfAScheduleSeesEachTurnOnceInOneInPeriods) {
  for (const std::uint32_t one_in : {1U, 2U, 6U, 7U, 16U, 1024U}) {
    for (const std::uint64_t place : {0U, 1U, 2U, 5U}) {
      for (const std::uint32_t block : {0U, 1U, 17U}) {
        std::set<std::uint32_t> turns;
        for (std::uint64_t pass = 0; pass < one_in; ++pass)
          turns.insert(Mask::of_round(one_in, block, place, pass + 5).turn);
        EXPECT_EQ(turns.size(), one_in);
        EXPECT_LT(*turns.rbegin(), one_in);
      }
    }
  }
}

// Two places of a schedule, or two blocks, choose the same turn in as many periods as by chance:
// one in one_in.
TEST(Mask, PlacesAndBlocksAreNotAlike) {
  constexpr std::uint32_t kOneIn = 16;
  int places = 0, blocks = 0, all = 0;
  for (std::uint64_t k = 0; k < 200; ++k) {
    for (std::uint64_t pass = 0; pass < kOneIn; ++pass, ++all) {
      const auto turn = [&](std::uint32_t block, std::uint64_t place) {
        return Mask::of_round(kOneIn, block, place, pass).turn;
      };
      places += turn(3, k) == turn(3, k + 1) ? 1 : 0;
      blocks += turn(static_cast<std::uint32_t>(k), 0) == turn(static_cast<std::uint32_t>(k) + 1, 0) ? 1 : 0;
    }
  }
  EXPECT_NEAR(places * kOneIn, all, all / 3);
  EXPECT_NEAR(blocks * kOneIn, all, all / 3);
}

TEST(Mask, ItsWordTellsMasksApart) {
  std::set<std::uint64_t> words;
  std::size_t masks = 0;
  for (std::uint32_t one_in = 1; one_in <= 40; ++one_in) {
    for (std::uint32_t turn = 0; turn < one_in; ++turn, ++masks) words.insert(Mask{one_in, turn}.word());
  }
  EXPECT_EQ(words.size(), masks);
  EXPECT_EQ(Mask{}.word(), 0U);  // the word of all frames without a mask
}

}  // namespace
}  // namespace starling
