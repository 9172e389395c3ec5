// Every value of the 16-bit formats, the rounding between them, and the kernels' wires on every
// instruction set.
#include "starling/kernels/wire.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "starling/kernels/update.h"
#include "tests/refusal.h"

namespace starling::kernels {
namespace {

struct Format {
  Wire wire;
  std::uint16_t (*encode)(float);
  float (*decode)(std::uint16_t);
  int exponent_bits, mantissa_bits;
};
const Format kFormats[] = {{Wire::bf16, to_bf16, from_bf16, 8, 7}, {Wire::fp16, to_fp16, from_fp16, 5, 10}};

// The meaning of the bits, by IEEE 754.
double meaning(const Format& f, std::uint16_t bits) {
  const int exponent = bits >> f.mantissa_bits & ((1 << f.exponent_bits) - 1);
  const int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << f.exponent_bits) - 1)
    return mantissa != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  const double fraction = std::ldexp(mantissa, -f.mantissa_bits);
  return sign * std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - bias);
}

TEST(Wire, EveryValueMeansWhatIeeeSaysAndComesBack) {
  for (const Format& f : kFormats) {
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const auto value = static_cast<std::uint16_t>(bits);
      const double want = meaning(f, value);
      const float got = f.decode(value);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got)) << name_of(f.wire) << " " << bits;
        ASSERT_TRUE(std::isnan(f.decode(f.encode(got))));
      } else {
        ASSERT_EQ(got, want) << name_of(f.wire) << " " << bits;
        ASSERT_EQ(f.encode(got), value) << name_of(f.wire);
      }
    }
  }
}

// Between any two adjacent values: the middle rounds to the even one, and values beside the middle
// to the nearer one.
TEST(Wire, RoundsToNearestTiesToEven) {
  for (const Format& f : kFormats) {
    const int largest = (((1 << f.exponent_bits) - 1) << f.mantissa_bits) - 1;  // finite
    for (int low = 0; low < largest; ++low) {
      const auto below = static_cast<std::uint16_t>(low), above = static_cast<std::uint16_t>(low + 1);
      const double middle = (meaning(f, below) + meaning(f, above)) / 2;
      const auto exact = static_cast<float>(middle);
      ASSERT_EQ(exact, middle);
      const std::uint16_t even = low % 2 == 0 ? below : above;
      for (const std::uint16_t sign : {0, 0x8000}) {
        const float s = sign != 0 ? -1 : 1;
        ASSERT_EQ(f.encode(s * exact), even | sign) << low;
        ASSERT_EQ(f.encode(s * std::nextafter(exact, 0.0F)), below | sign) << low;
        ASSERT_EQ(f.encode(s * std::nextafter(exact, std::numeric_limits<float>::infinity())), above | sign)
            << low;
      }
    }
  }
  EXPECT_TRUE(std::isfinite(from_fp16(to_fp16(65519.0F))));
  EXPECT_TRUE(std::isinf(from_fp16(to_fp16(65520.0F))));
  EXPECT_TRUE(std::isinf(from_fp16(to_fp16(-1e30F))));
  EXPECT_EQ(to_fp16(1e-8F), 0);
}

TEST(Wire, Names) {
  for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16, Wire::int8, Wire::int4})
    EXPECT_EQ(wire_named(name_of(wire)), wire);
  EXPECT_EQ(refusal<UsageError>([] { wire_named("fp8"); }),
            "there is no wire \"fp8\", did you mean fp32?; there are fp32, bf16, fp16, int8, int4");
}

// At any place: in the part that is checked in whole registers, or in the rest.
TEST(Wire, FindsWhatIsNotFiniteOnEveryInstructionSet) {
  for (const Kernels& kernels : supported_kernels()) {
    for (const Wire wire : {Wire::fp32, Wire::bf16, Wire::fp16}) {
      std::vector<float> x(311, 3.0F);
      std::vector<std::byte> sent(bytes_of(wire, x.size()));
      const auto send = [&] {
        return kernels.update(SgdStep{}, {}, x.data(), nullptr, {}, {sent.data(), wire}, x.size());
      };
      EXPECT_TRUE(send());
      EXPECT_TRUE(kernels.all_finite(sent, wire));
      for (std::size_t at = 0; at < x.size(); ++at) {
        for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf(""), -std::nanf("")}) {
          x[at] = bad;
          EXPECT_FALSE(send());
          EXPECT_FALSE(kernels.all_finite(sent, wire))
              << kernels.isa << " " << name_of(wire) << " " << bad << " " << at;
        }
        x[at] = 1e6F;  // beyond fp16
        EXPECT_EQ(send(), wire != Wire::fp16);
        EXPECT_EQ(kernels.all_finite(sent, wire), wire != Wire::fp16);
        x[at] = 3.0F;
      }
    }
  }
}

// Decoding, mixing and encoding inside the kernel: the results of the plain functions and the
// formula, to the bit.
TEST(Wire, TheKernelsMixAndSendItOnEveryInstructionSet) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const Format& f : kFormats) {
    for (const std::size_t n : {1U, 31U, 64U, 200U, 1031U}) {
      std::vector<float> x(n), want(n);
      std::vector<std::uint16_t> theirs(n), mine(n), want_sent(n);
      for (std::size_t i = 0; i < n; ++i) {
        x[i] = normal(random);
        theirs[i] = f.encode(normal(random) * 1e-3F), mine[i] = f.encode(x[i]);
        want[i] = x[i] + 0.4F * (f.decode(theirs[i]) - f.decode(mine[i]));
        want_sent[i] = f.encode(want[i]);
      }
      const Mix edge{0.4F, {theirs.data(), f.wire}, {mine.data(), f.wire}};
      for (const Kernels& kernels : supported_kernels()) {
        for (const bool stream : {false, true}) {
          std::vector<float> got = x;
          std::vector<std::uint16_t> sent(n + 1);  // not aligned to a cache line
          EXPECT_TRUE(kernels.update(SgdStep{}, {&edge, 1}, got.data(), nullptr, {},
                                     {sent.data() + 1, f.wire, stream}, n));
          EXPECT_EQ(got, want) << name_of(f.wire) << " " << kernels.isa;
          sent.erase(sent.begin());
          EXPECT_EQ(sent, want_sent) << name_of(f.wire) << " " << kernels.isa;
        }
      }
    }
  }
}

}  // namespace
}  // namespace starling::kernels
