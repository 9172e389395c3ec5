// Whole numbers in bytes, the low byte first: in frames, and in files that are mapped into memory.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

namespace starling {

// Writes `value` at byte `at`. There is room for it.
template <std::unsigned_integral T>
void put(std::span<std::byte> to, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to[at + i] = static_cast<std::byte>(value >> (8 * i));
}

// The number at byte `at`. It is within `from`.
template <std::unsigned_integral T>
T take(std::span<const std::byte> from, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(from[at + i]) << (8 * i));
  return value;
}

}  // namespace starling
