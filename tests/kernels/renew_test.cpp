// The kernels that gossip needs besides mixing, with every instruction set that runs here: plain
// loops, to the bit.
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/values.h"

namespace starling::kernels {
namespace {

class Renew : public testing::TestWithParam<Kernels> {
 protected:
  const Kernels kernels = GetParam();
};
STARLING_EVERY_ISA(Renew);

TEST_P(Renew, GivesWhatWasDoneAndTakesX) {
  for (const std::size_t n : {1U, 63U, 64U, 200U}) {
    for (const bool momentum : {false, true}) {
      const float scale = momentum ? 1 : 1.7F;
      Values p = random_values(n, 1), taken = random_values(n, 2);
      Values x = random_values(n, 3), x_tilde = random_values(n, 4);
      const Values p0 = p, taken0 = taken, x0 = x, x0_tilde = x_tilde;
      kernels.renew(p.data(), taken.data(), x.data(), momentum ? x_tilde.data() : nullptr, scale, n);
      for (std::size_t i = 0; i < n; ++i) {
        const float d = scale * (p0[i] - taken0[i]);
        EXPECT_EQ(x[i], x0[i] + d);
        EXPECT_EQ(x_tilde[i], momentum ? x0_tilde[i] + d : x0_tilde[i]);
        EXPECT_EQ(p[i], x[i]);
        EXPECT_EQ(taken[i], x[i]);
      }
    }
  }
}

// The master is given and renewed. A parameter that another party has changed becomes the master.
TEST_P(Renew, OfANarrowParameterItIsTheMaster) {
  constexpr std::size_t n = 100;
  for (const Wire format : {Wire::bf16, Wire::fp16}) {
    Values master = random_values(n, 1), taken = random_values(n, 2), x = random_values(n, 3);
    std::vector<std::uint16_t> p(n);
    encode(master.data(), n, format, p.data());
    p[7] = format == Wire::bf16 ? to_bf16(3) : to_fp16(3);
    Values expected(n);
    for (std::size_t i = 0; i < n; ++i) expected[i] = x[i] + ((i == 7 ? 3 : master[i]) - taken[i]);
    kernels.renew({p.data(), format, master.data()}, taken.data(), x.data(), nullptr, 1, n);
    for (std::size_t i = 0; i < n; ++i) {
      EXPECT_EQ(x[i], expected[i]);
      EXPECT_EQ(master[i], x[i]);
      EXPECT_EQ(taken[i], x[i]);
      EXPECT_EQ(p[i], format == Wire::bf16 ? to_bf16(x[i]) : to_fp16(x[i]));
    }
  }
}

TEST_P(Renew, SquaredDistanceIsThatOfWhatWasSent) {
  for (const std::size_t n : {1U, 16U, 77U, 1000U}) {
    const Values a = random_values(n, 5), b = random_values(n, 6);
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) squares += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    EXPECT_NEAR(kernels.squared_distance(a.data(), b.data(), n), squares, 1e-5 * squares);
    for (const Wire wire : {Wire::bf16, Wire::fp16}) {
      std::vector<std::uint16_t> p(n), q(n);
      encode(a.data(), n, wire, p.data()), encode(b.data(), n, wire, q.data());
      EXPECT_NEAR(kernels.squared_distance({p.data(), wire}, {q.data(), wire}, n), squares, 0.02 * squares);
    }
    for (const Wire wire : {Wire::int8, Wire::int4}) {
      // b within half of the range around a, on grids that differ.
      const int step = wire == Wire::int8 ? -4 : -1;
      Values near = a;
      double expected = 0;
      std::vector<std::byte> mine(bytes_of(wire, n)), theirs(bytes_of(wire, n));
      const auto written = [&](const Values& values, int exponent, std::vector<std::byte>& to) {
        WireBlock block{to.data(), wire};
        block.exponent = exponent;
        Values copy = values;
        kernels.update(SgdStep{}, {}, copy.data(), nullptr, {}, block, n);
        return Sent{to.data(), wire, exponent};
      };
      for (std::size_t i = 0; i < n; ++i) {
        near[i] += std::tanh(b[i]);
        const double on_mine = std::nearbyint(std::ldexp(double{a[i]}, -step)) * std::ldexp(1.0, step);
        const double on_theirs =
            std::nearbyint(std::ldexp(double{near[i]}, -step - 1)) * std::ldexp(1.0, step + 1);
        expected += (on_theirs - on_mine) * (on_theirs - on_mine);
      }
      EXPECT_NEAR(kernels.squared_distance(written(near, step + 1, theirs), written(a, step, mine), n),
                  expected, 1e-9);
    }
  }
}

}  // namespace
}  // namespace starling::kernels
