// Small counter-based random numbers. A value depends on its keys alone. It does not depend on
// earlier draws, on the number of workers or on torch's version. new_id() alone is not repeatable.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>

namespace starling {

// SplitMix64's finalizer (Steele, Lea & Flood 2014).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr std::uint64_t random_bits(std::initializer_list<std::uint64_t> keys) {
  std::uint64_t x = 0;
  for (const std::uint64_t key : keys) x = mix_bits(x ^ key);
  return x;
}

// A number above 0 that no other call returns, on any machine: it has 63 bits from the system.
inline std::int64_t new_id() {
  std::random_device device;
  return std::uniform_int_distribution<std::int64_t>(1, std::numeric_limits<std::int64_t>::max())(device);
}

// Uniform in [0, 1), in steps of 2^-53.
constexpr double uniform_of(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

}  // namespace starling
