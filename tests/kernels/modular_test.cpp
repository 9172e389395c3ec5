// Modular codes against plain integers on every instruction set, and the rule that chooses the
// grid.
#include "starling/kernels/modular.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "starling/kernels/update.h"

namespace starling::kernels {
namespace {

constexpr Wire kWires[] = {Wire::int8, Wire::int4};

std::int64_t modulo(std::int64_t value, std::int64_t m) { return (value % m + m) % m; }

// Every value on its own byte.
std::vector<std::uint8_t> spread(const std::vector<std::uint8_t>& codes, Wire wire, std::size_t n) {
  if (wire == Wire::int8) return codes;
  std::vector<std::uint8_t> all;
  for (std::size_t i = 0; i < n; ++i) all.push_back(codes[i / 2] >> (i % 2 * 4) & 15);
  return all;
}
std::vector<std::uint8_t> packed(const std::vector<std::uint8_t>& codes, Wire wire) {
  if (wire == Wire::int8) return codes;
  std::vector<std::uint8_t> all(bytes_of(wire, codes.size()));
  for (std::size_t i = 0; i < codes.size(); ++i)
    all[i / 2] = static_cast<std::uint8_t>(all[i / 2] | codes[i] << (i % 2 * 4));
  return all;
}

// Values of every size, ties among them, beyond 2^24 and 2^47 steps, and values that vanish.
std::vector<float> values(std::size_t n, int exponent) {
  std::mt19937 random(static_cast<unsigned>(n));
  std::vector<float> x;
  for (std::size_t i = 0; i < n; ++i) {
    const float sign = random() % 2 == 0 ? 1.0F : -1.0F;
    const float size = std::ldexp(1.0F + static_cast<float>(random() % (1 << 23)) * 0x1p-23F,
                                  static_cast<int>(random() % 60) - 10 + exponent);
    const float half = std::ldexp(static_cast<float>(random() % 1000) + 0.5F, exponent);
    x.push_back(sign * (random() % 3 == 0 ? half : size));
  }
  const float last = std::numeric_limits<float>::max();
  for (const float special : {last, -last, 0.0F, -0.0F, 1e-44F}) x[random() % n] = special;
  return x;
}

TEST(Modular, CodesAndTheirSumAreThoseOfPlainIntegersOnEveryInstructionSet) {
  for (const Wire wire : kWires) {
    for (const int exponent : {Grid::kFinest, -17, 0, Grid::kCoarsest}) {
      for (const std::size_t n : {1U, 31U, 64U, 201U, 1030U}) {
        std::vector<float> x = values(n, exponent);
        std::vector<std::uint8_t> want;
        std::int64_t want_sum = 0;
        for (const float value : x) {
          const double k = std::nearbyint(std::ldexp(static_cast<double>(value), -exponent));
          const auto low = modulo(static_cast<std::int64_t>(std::fmod(k, 0x1p24)), 1 << 24);
          want_sum += low;
          want.push_back(static_cast<std::uint8_t>(low % (1 << code_bits(wire))));
        }
        for (const Kernels& kernels : supported_kernels()) {
          for (const bool stream : {false, true}) {
            for (const std::size_t offset : {0U, 1U}) {
              std::vector<std::uint8_t> sent(bytes_of(wire, n) + offset + 1, 0xee);
              std::uint32_t sum = 0;
              WireBlock to{sent.data() + offset, wire, stream};
              to.exponent = exponent, to.sum = &sum;
              EXPECT_TRUE(kernels.update(SgdStep{}, {}, x.data(), nullptr, {}, to, n));
              EXPECT_EQ(sent.back(), 0xee);  // nothing behind it
              const std::vector<std::uint8_t> codes(sent.begin() + static_cast<std::ptrdiff_t>(offset),
                                                    sent.end() - 1);
              ASSERT_EQ(spread(codes, wire, n), want)
                  << name_of(wire) << " " << kernels.isa << " " << exponent;
              EXPECT_EQ(sum % (1 << 24), want_sum % (1 << 24)) << name_of(wire) << " " << kernels.isa;
            }
          }
        }
      }
    }
  }
}

TEST(Modular, WhatIsNotFiniteIsFound) {
  for (const Wire wire : kWires) {
    std::vector<float> x(100, 3.0F);
    std::vector<std::uint8_t> sent(100);
    EXPECT_TRUE(update(SgdStep{}, {}, x.data(), nullptr, {}, {sent.data(), wire}, x.size()));
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      x[77] = bad;
      EXPECT_FALSE(update(SgdStep{}, {}, x.data(), nullptr, {}, {sent.data(), wire}, x.size()));
    }
  }
}

// All pairs of codes, on grids that differ by more than a code has bits.
TEST(Modular, DifferencesAreThoseOfPlainIntegersAndWhatOneGetsTheOtherLoses) {
  for (const Wire wire : kWires) {
    const int b = code_bits(wire), codes = 1 << b;
    std::vector<std::uint8_t> first, second;
    for (int i = 0; i < codes; ++i) {
      for (int j = 0; j < codes; ++j)
        first.push_back(static_cast<std::uint8_t>(i)), second.push_back(static_cast<std::uint8_t>(j));
    }
    const std::size_t n = first.size();
    const std::vector<std::uint8_t> one = packed(first, wire), two = packed(second, wire);
    for (int difference = -b - 1; difference <= b + 1; ++difference) {
      const int my_exponent = -9, their_exponent = my_exponent + difference,
                finer = std::min(my_exponent, their_exponent);
      std::vector<float> want(n);
      Measured seen;
      for (std::size_t i = 0; i < n && std::abs(difference) < b; ++i) {
        std::int64_t D = modulo((std::int64_t{second[i]} << (their_exponent - finer)) -
                                    (std::int64_t{first[i]} << (my_exponent - finer)),
                                codes);
        if (D >= codes / 2) D -= codes;
        if (D == -codes / 2) D = 0;
        want[i] = std::ldexp(0.5F * static_cast<float>(D), finer);
        seen.add({static_cast<std::int32_t>(std::abs(D)), static_cast<std::uint32_t>(D)});
      }
      for (const Kernels& kernels : supported_kernels()) {
        std::vector<float> mine(n), theirs(n);
        Measured measured, other;
        const Sent mine_sent(one.data(), wire, my_exponent), theirs_sent(two.data(), wire, their_exponent);
        const Mix here{0.5F, theirs_sent, mine_sent, &measured}, there{0.5F, mine_sent, theirs_sent, &other};
        kernels.update(SgdStep{}, {&here, 1}, mine.data(), nullptr, {}, {}, n);
        kernels.update(SgdStep{}, {&there, 1}, theirs.data(), nullptr, {}, {}, n);
        ASSERT_EQ(mine, want) << name_of(wire) << " " << kernels.isa << " " << difference;
        for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(theirs[i], -mine[i]);
        EXPECT_EQ(measured.largest, seen.largest);
        EXPECT_EQ(measured.sum, seen.sum);
        EXPECT_EQ(other.largest, seen.largest);
      }
    }
  }
}

TEST(Modular, ANeighbourWhoseGridIsTooFarApartIsLeftOutWhereverItStands) {
  const std::size_t n = 150;
  std::vector<std::uint8_t> mine(n), theirs(n);
  for (std::size_t i = 0; i < n; ++i)
    mine[i] = static_cast<std::uint8_t>(7 * i), theirs[i] = static_cast<std::uint8_t>(11 * i + 3);
  const Mix near{0.25F, {theirs.data(), Wire::int8, -9}, {mine.data(), Wire::int8, -9}};
  const Mix far{0.25F, {theirs.data(), Wire::int8, 9}, {mine.data(), Wire::int8, -9}};
  const std::vector<float> before = values(n, -9), g(n, 0.5F);
  for (const Kernels& kernels : supported_kernels()) {
    const auto after = [&](std::vector<Mix> mixes, const float* gradient) {
      std::vector<float> x = before;
      kernels.update(SgdStep{}, mixes, x.data(), gradient, {}, {}, n);
      return x;
    };
    for (const float* gradient : {static_cast<const float*>(nullptr), g.data()}) {
      const std::vector<float> want = after({near}, gradient);
      EXPECT_NE(want, before);
      EXPECT_EQ(after({near, far}, gradient), want) << kernels.isa;
      EXPECT_EQ(after({far, near}, gradient), want) << kernels.isa;
    }
    EXPECT_EQ(after({far}, nullptr), before) << kernels.isa;
  }
}

// The grid's choice for two blocks of one value.
int after(Wire wire, float theirs, int their_exponent, float mine, int my_exponent) {
  std::uint8_t codes[2]{};
  Trailer trailers[2]{{their_exponent, 0}, {my_exponent, 0}};
  float values[2]{theirs, mine};
  for (int i = 0; i < 2; ++i) {
    WireBlock to{&codes[i], wire};
    to.exponent = trailers[i].exponent, to.sum = &trailers[i].sum;
    update(SgdStep{}, {}, &values[i], nullptr, {}, to, 1);
  }
  Measured measured;
  const Mix edge{0.5F, {&codes[0], wire, their_exponent}, {&codes[1], wire, my_exponent}, &measured};
  update(SgdStep{}, {&edge, 1}, &values[1], nullptr, {}, {}, 1);
  Grid::Wanted wanted;
  wanted.add(wire, trailers[0], trailers[1], measured);
  Grid grid(wire);
  grid.follow(wanted);
  return grid.next();
}

TEST(Modular, TheGridFollowsTheLargestDisagreement) {
  const Wire w = Wire::int8;
  // 128 steps hold 4 times 32 of them.
  EXPECT_EQ(after(w, 132, 0, 100, 0), 0);
  EXPECT_EQ(after(w, 133, 0, 100, 0), 1);
  EXPECT_EQ(after(w, 100, 0, 133, 0), 1);
  EXPECT_EQ(after(w, 116, 0, 100, 0), -1);  // half of it
  EXPECT_EQ(after(w, 101, 0, 100, 0), -5);
  EXPECT_EQ(after(w, 100, 0, 100, 0), -5);  // nearly 1, for all that is known
  EXPECT_EQ(after(w, 220, 0, 100, 0), 2);
  EXPECT_EQ(after(w, 228, 0, 100, 0), Grid::kAfterWrap);  // 128: it could as well be -128
  EXPECT_EQ(after(w, 366, 0, 100, 0), Grid::kAfterWrap);  // 266 looks like 10
  EXPECT_EQ(after(w, 3e5F, 0, 100, 0), Grid::kAfterWrap);
  // Grids apart by 4: the finer one counts.
  EXPECT_EQ(after(w, 132, 0, 100, -4),
            -4 + Grid::kAfterWrap);  // 512 of its steps: it has wrapped, because that is 0
  EXPECT_EQ(after(w, 132, 0, 130, -4), -4);
  // Apart by 8 and more: the coarser one is taken.
  EXPECT_EQ(after(w, 132, 3, 130, -6), 3);
  EXPECT_EQ(after(w, 132, -6, 130, 3), 3);
  // Never out of its bounds.
  EXPECT_EQ(after(w, 1, Grid::kFinest, 1, Grid::kFinest), Grid::kFinest);
  EXPECT_EQ(after(w, 1e8F, Grid::kCoarsest, 0, Grid::kCoarsest), Grid::kCoarsest);
  // int4: 8 steps hold 2 times 4.
  EXPECT_EQ(after(Wire::int4, 104, 0, 100, 0), 0);
  EXPECT_EQ(after(Wire::int4, 105, 0, 100, 0), 1);
  EXPECT_EQ(after(Wire::int4, 110, 0, 100, 0), Grid::kAfterWrap);
}

TEST(Modular, TheGridHoldsWhatTheLastPeriodNeeded) {
  const auto saw = [](int exponent) {  // 32 of its steps: to be kept
    Grid::Wanted wanted;
    wanted.add(Wire::int8, {exponent, 32}, {exponent, 0}, {32, 32});
    return wanted;
  };
  Grid grid(Wire::int8, 3);
  const int first = Grid::first(Wire::int8);
  grid.follow(saw(-20)), grid.follow(saw(-21));
  EXPECT_EQ(grid.next(), first);  // not all neighbours have been met
  grid.follow(saw(-22));
  EXPECT_EQ(grid.next(), -20);
  grid.follow(saw(-25));
  EXPECT_EQ(grid.next(), -21);
  grid.follow(saw(-5));
  grid.follow(saw(-30)), grid.follow(saw(-30));
  EXPECT_EQ(grid.next(), -5);
  grid.follow(saw(-30));
  EXPECT_EQ(grid.next(), -30);
}

TEST(Modular, ABlockThatIsSentAgainIsOnTheSameGrid) {
  Grid grid(Wire::int8);
  const int first = grid.next();
  Grid::Wanted wanted;
  wanted.add(Wire::int8, {first, 0}, {first, 0}, {100, 100});  // and the sums say that it wrapped
  grid.follow(wanted);
  EXPECT_EQ(grid.again(), first);
  Grid resumed(Wire::int8);
  resumed.set_state(grid.state());
  EXPECT_EQ(resumed.again(), first);
  EXPECT_EQ(grid.next(), first + Grid::kAfterWrap);
  EXPECT_EQ(resumed.next(), first + Grid::kAfterWrap);
  grid.follow({});  // nothing was mixed: it stays
  EXPECT_EQ(grid.next(), first + Grid::kAfterWrap);
}

}  // namespace
}  // namespace starling::kernels
