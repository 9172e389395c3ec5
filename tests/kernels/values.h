// Values, and every instruction set that runs here, for tests of the kernels.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "starling/kernels/update.h"

namespace starling::kernels {

inline void PrintTo(const Kernels& kernels, std::ostream* out) { *out << kernels.isa; }  // for GoogleTest

// Runs the suite with the kernels of each.
#define STARLING_EVERY_ISA(suite)                                                                     \
  INSTANTIATE_TEST_SUITE_P(Isa, suite,                                                                \
                           testing::ValuesIn(supported_kernels().begin(), supported_kernels().end()), \
                           [](const auto& one) { return std::string(one.param.isa); })

using Values = std::vector<float>;

inline Values random_values(std::size_t n, std::uint32_t seed, float scale = 1) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, scale);
  Values values(n);
  for (float& value : values) value = normal(generator);
  return values;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Numbers on which no library's distribution decides: the same on every machine.
struct Numbers {
  float operator()() {
    state = state * 1664525U + 1013904223U;
    return static_cast<float>(static_cast<std::int32_t>(state) / 4096) * 0x1p-18F;
  }
  std::uint32_t state = 1;
};

// One number for all bits: FNV-1a.
struct Hash {
  void add(std::uint64_t bits) { value = (value ^ bits) * 1099511628211U; }
  void add(const Values& values) {
    for (const float one : values) add(std::bit_cast<std::uint32_t>(one));
  }
  std::uint64_t value = 14695981039346656037U;
};

}  // namespace starling::kernels
