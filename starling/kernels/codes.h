// One modular code, and the difference of two of them: the arithmetic of the wires int8 and int4.
// modular.h explains the method, defines the terms, and has the rest.
//
// Like format.h, this file is compiled for GPUs too.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>

#include "starling/kernels/format.h"

namespace starling::kernels {

constexpr int code_bits(Wire wire) { return wire == Wire::int8 ? 8 : 4; }

// The kernel's measurement of the difference of two workers' codes.
struct Measured {
  std::int32_t largest = 0;  // |D|
  std::uint32_t sum = 0;     // sum of D, modulo 2^32
  void add(const Measured& more) {
    largest = std::max(largest, more.largest);
    sum += more.sum;
  }
};

// 2^exponent, from -126 to 127.
inline float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

// k modulo 2^24; the upper bits are undefined. `scaled` is x / delta.
inline std::uint32_t grid_point(float scaled) {
  const auto bits = std::bit_cast<std::uint32_t>(scaled);
  std::uint32_t magnitude = bits & 0x7fffffffu;
  // From 2^47 on every float is a multiple of 2^24.
  magnitude &= where_less(magnitude, 0x57000000u);
  const float rounded = (std::bit_cast<float>(magnitude) + 0x1p23f) - 0x1p23f;
  const std::uint32_t fraction = where_less(magnitude, 0x4b000000u);  // below 2^23
  const auto whole =
      std::bit_cast<float>((std::bit_cast<std::uint32_t>(rounded) & fraction) | (magnitude & ~fraction));
  const auto high = static_cast<float>(static_cast<std::int32_t>(whole * 0x1p-24f));
  const auto low = static_cast<std::uint32_t>(static_cast<std::int32_t>(whole - high * 0x1p24f));
  const std::uint32_t sign = 0 - (bits >> 31);
  return (low ^ sign) - sign;
}

// The relation of two grids.
struct Pair {
  Pair(Wire wire, int their_exponent, int my_exponent)
      : exponent(std::min(their_exponent, my_exponent)),
        mixes(std::abs(their_exponent - my_exponent) < code_bits(wire)),
        unused(32 - code_bits(wire)),
        their_shift(mixes ? their_exponent - exponent + unused : 0),
        my_shift(mixes ? my_exponent - exponent + unused : 0),
        ambiguous(-(1 << (code_bits(wire) - 1))) {}
  std::int32_t difference(std::uint32_t theirs, std::uint32_t mine) const {
    const std::int32_t D = static_cast<std::int32_t>((theirs << their_shift) - (mine << my_shift)) >> unused;
    return D & -static_cast<std::int32_t>(D != ambiguous);
  }
  int exponent;  // exponent of the finer one
  bool mixes;    // false: the coarser one's codes have no information on the finer one
  int unused, their_shift, my_shift;
  std::int32_t ambiguous;
};

}  // namespace starling::kernels
