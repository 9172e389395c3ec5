// top-k: each worker chooses which of a block's values it sends, and sends their indices along.
//
//   block   k indices of 4 bytes, rising; then their k values in fp32, in the same order. All little-endian
//   k       ceil(n / one_in) of a block of n values, in every round
//
// With one_in = 1 all n values go, without indices. 8 bytes for each value otherwise: one_in = 2 saves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling {

struct TopK {
  std::uint32_t one_in = 1;

  std::size_t chosen_of(std::size_t n) const { return (n + one_in - 1) / one_in; }
  // Of 4 bytes each, in a wire block.
  std::size_t words(std::size_t n) const { return one_in == 1 ? n : 2 * chosen_of(n); }
  // What frames carry in place of a mask's word: different from those of all masks.
  std::uint64_t word() const { return std::uint64_t{1} << 63 | one_in; }
};

// The indices of the indices.size() largest, rising; of equal ones the first. No more than there are.
void choose_largest(std::span<const std::uint32_t> sizes, std::span<std::uint32_t> indices);

// Whether a wire block with indices is what it should be: as long as TopK says, the indices rising and below n. Of the values
// nothing is said. The block may lie in another worker's memory and change after it was looked at: who uses an index compares
// it with n again.
bool is_sound(TopK top, std::span<const std::byte> block, std::size_t n);

}  // namespace starling
