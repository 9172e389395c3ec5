// The number formats in which parameters cross a link, and the conversion of one value. Parameters
// in memory may have the first three formats.
//
//   fp32   4 bytes, nothing is lost
//   bf16   2 bytes, 8 bits of precision, the range of fp32
//   fp16   2 bytes, 11 bits of precision, up to 65504
//   int8   1 byte, and int4   half a byte: modular codes (modular.h), which hold only the
//          difference of two workers
//
// Conversions round to nearest, ties to even, with the same bits as torch, and keep NaN. They are
// plain functions of one element without branches, so that the compiler vectorizes the loops over
// them.
//
// This file is compiled for GPUs too (cuda/update.cuh). It may use only those parts of the standard
// library that cuda/standard.cuh has.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace starling {

enum class Wire : std::uint8_t { fp32, bf16, fp16, int8, int4 };

constexpr bool is_modular(Wire wire) { return wire == Wire::int8 || wire == Wire::int4; }
// The size of n values. The last byte of int4 may be half empty.
constexpr std::size_t bytes_of(Wire wire, std::size_t n) {
  switch (wire) {
    case Wire::fp32:
      return 4 * n;
    case Wire::bf16:
    case Wire::fp16:
      return 2 * n;
    case Wire::int8:
      return n;
    case Wire::int4:
      return (n + 1) / 2;
  }
  return 0;
}

namespace kernels {

// All bits if a < b, else none; both from 0 to 2^31 - 1. (A plain choice becomes a branch, and then
// the compiler does not vectorize the loop.)
inline std::uint32_t where_less(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::uint32_t>(static_cast<std::int32_t>(a - b) >> 31);
}

inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(nan ? 0x7fc0u : rounded);
}

inline float from_bf16(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

inline std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  // From 2^-14 on: another bias of the exponent, 13 bits fewer. A carry out of the mantissa raises
  // the exponent.
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Below: the sum with 0.5 is rounded at fp16's last bit.
  const std::uint32_t tiny = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
                             std::bit_cast<std::uint32_t>(0.5f);
  const std::uint32_t below = where_less(magnitude, 0x38800000u);
  const std::uint32_t fits = where_less(magnitude, 0x47800000u);  // 2^16
  const std::uint32_t nan = where_less(0x7f800000u, magnitude);
  const std::uint32_t half = (tiny & below) | (normal & ~below & fits) | (0x7c00u & ~fits) | (0x200u & nan);
  return static_cast<std::uint16_t>(sign | half);
}

inline float from_fp16(std::uint16_t value) {
  const std::uint32_t sign = (value & 0x8000u) << 16, magnitude = value & 0x7fffu;
  const std::uint32_t normal = (magnitude << 13) + (112u << 23);
  const auto tiny =
      std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * 0x1p-24f);
  const std::uint32_t below = where_less(magnitude, 0x400u);
  const std::uint32_t whole = where_less(magnitude, 0x7c00u);  // else infinite or NaN
  const std::uint32_t bits = ((tiny & below) | (normal & ~below)) + ((112u << 23) & ~whole);
  return std::bit_cast<float>(sign | bits);
}

// Infinities and NaNs have all exponent bits set, so adding one to the exponent carries into the
// sign bit. The highest bit of the result says that a value is not finite. The other bits have no
// meaning.
inline std::uint32_t full_exponent(float value) {
  return (std::bit_cast<std::uint32_t>(value) & 0x7f800000u) + 0x00800000u;
}
inline bool finite_bf16(std::uint16_t value) { return (value & 0x7f80u) != 0x7f80u; }
inline bool finite_fp16(std::uint16_t value) { return (value & 0x7c00u) != 0x7c00u; }

}  // namespace kernels
}  // namespace starling
