#include "starling/kernels/top_k.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace starling {
namespace {

// The largest bin such that it and the bins above hold at least `wanted`. The bins above hold
// `above`.
struct Bin {
  std::uint32_t number = 0;
  std::size_t above = 0;
};

Bin bin_of(const std::vector<std::size_t>& counts, std::size_t wanted) {
  Bin bin{static_cast<std::uint32_t>(counts.size() - 1), 0};
  for (; bin.number > 0 && bin.above + counts[bin.number] < wanted; --bin.number)
    bin.above += counts[bin.number];
  return bin;
}

}  // namespace

// Finds the k-th largest by its upper 16 bits, then by its lower ones: three reads, whatever the
// values are.
void choose_largest(std::span<const std::uint32_t> sizes, std::span<std::uint32_t> indices) {
  if (indices.empty()) return;
  std::vector<std::size_t> counts(std::size_t{1} << 16);
  for (const std::uint32_t size : sizes) ++counts[size >> 16];
  const Bin upper = bin_of(counts, indices.size());
  std::fill(counts.begin(), counts.end(), std::size_t{0});
  for (const std::uint32_t size : sizes) {
    if (size >> 16 == upper.number) ++counts[size & 0xffffu];
  }
  const Bin lower = bin_of(counts, indices.size() - upper.above);
  const std::uint32_t least = upper.number << 16 | lower.number;
  std::size_t equal = indices.size() - upper.above - lower.above;
  auto next = indices.begin();
  for (std::size_t i = 0; i < sizes.size() && next != indices.end(); ++i) {
    if (sizes[i] < least || (sizes[i] == least && equal == 0)) continue;
    if (sizes[i] == least) --equal;
    *next++ = static_cast<std::uint32_t>(i);
  }
}

bool is_sound(TopK top, std::span<const std::byte> block, std::size_t n) {
  if (block.size() != top.words(n) * sizeof(std::uint32_t)) return false;
  if (top.one_in == 1) return true;
  std::uint64_t least = 0;  // least allowed next index
  for (std::size_t i = 0; i < top.chosen_of(n); ++i) {
    std::uint32_t index = 0;
    std::memcpy(&index, block.data() + i * sizeof index, sizeof index);
    if (index < least || index >= n) return false;
    least = std::uint64_t{index} + 1;
  }
  return true;
}

}  // namespace starling
