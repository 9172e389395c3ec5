// top-k: each worker chooses the values of a block that it sends, and sends their indices too.
//
//   block   k indices of 4 bytes, rising; then their k values in fp32, in the same order. All
//           little-endian
//   k       ceil(n / one_in) of a block of n values, in every round
//
// With one_in = 1 all n values are sent, without indices. Otherwise each value takes 8 bytes:
// one_in = 2 saves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling {

struct TopK {
  std::uint32_t one_in = 1;

  std::size_t chosen_of(std::size_t n) const { return (n + one_in - 1) / one_in; }
  // Words of 4 bytes each in a wire block.
  std::size_t words(std::size_t n) const { return one_in == 1 ? n : 2 * chosen_of(n); }
  // Replaces a mask's word in frames. It differs from the words of all masks.
  std::uint64_t word() const { return std::uint64_t{1} << 63 | one_in; }
};

// The indices of the indices.size() largest values, rising; of equal ones the first. There must be
// at least as many values.
void choose_largest(std::span<const std::uint32_t> sizes, std::span<std::uint32_t> indices);

// Whether a wire block with indices is well formed: its length as TopK says, the indices rising and
// below n. Says nothing about the values. The block may lie in another worker's memory and change
// after the check, so every use of an index compares it with n again.
bool is_sound(TopK top, std::span<const std::byte> block, std::size_t n);

}  // namespace starling
