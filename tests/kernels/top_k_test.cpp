// top-k against sorting, and the indices that a reader refuses.
#include "starling/kernels/top_k.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace starling {
namespace {

std::vector<std::uint32_t> sorted_choice(const std::vector<std::uint32_t>& sizes, std::size_t k) {
  std::vector<std::uint32_t> indices(sizes.size());
  std::iota(indices.begin(), indices.end(), 0U);
  std::stable_sort(indices.begin(), indices.end(), [&](auto a, auto b) { return sizes[a] > sizes[b]; });
  indices.resize(k);
  std::sort(indices.begin(), indices.end());
  return indices;
}

TEST(TopK, ChoosesWhatSortingDoes) {
  std::mt19937 random(7);
  for (const std::uint32_t values :
       {1U, 2U, 50U, 70'000U, 0x20000U, 0xffffffffU}) {  // number of different values
    for (const std::size_t n : {1U, 2U, 7U, 1000U, 5000U}) {
      std::vector<std::uint32_t> sizes(n);
      for (auto& size : sizes) size = values == 0xffffffffU ? random() : random() % values;
      for (const std::size_t k : {std::size_t{0}, std::size_t{1}, n / 3, n - 1, n}) {
        std::vector<std::uint32_t> indices(k);
        choose_largest(sizes, indices);
        EXPECT_EQ(indices, sorted_choice(sizes, k)) << values << " " << n << " " << k;
      }
    }
  }
}

TEST(TopK, SizesOfBlocks) {
  EXPECT_EQ(TopK{4}.chosen_of(1), 1U);
  EXPECT_EQ(TopK{4}.chosen_of(8), 2U);
  EXPECT_EQ(TopK{4}.chosen_of(9), 3U);
  EXPECT_EQ(TopK{4}.words(9), 6U);
  EXPECT_EQ(TopK{1}.words(9), 9U);  // no indices
  EXPECT_NE(TopK{4}.word(), TopK{5}.word());
}

TEST(TopK, IndicesThatDoNotRiseWithinTheBlockAreRefused) {
  const std::size_t n = 9;
  const auto sound = [&](std::vector<std::uint32_t> words) {
    return is_sound({4}, std::as_bytes(std::span(words)), n);
  };
  EXPECT_TRUE(sound({0, 1, 2, 7, 7, 7}));  // three values of any bits
  EXPECT_TRUE(sound({2, 7, 8, 0, 0, 0}));
  EXPECT_FALSE(sound({2, 7, 9, 0, 0, 0}));           // behind the block
  EXPECT_FALSE(sound({2, 7, 0xffffffff, 0, 0, 0}));  // far behind
  EXPECT_FALSE(sound({0xffffffff, 0, 1, 0, 0, 0}));  // the next would begin again at 0
  EXPECT_FALSE(sound({2, 2, 8, 0, 0, 0}));           // twice
  EXPECT_FALSE(sound({7, 2, 8, 0, 0, 0}));
  EXPECT_FALSE(sound({2, 7, 0, 0}));  // too few
  EXPECT_FALSE(sound({1, 2, 7, 8, 0, 0, 0, 0}));
  EXPECT_FALSE(sound({}));
  const std::vector<float> nine(9);  // all values, without indices
  EXPECT_TRUE(is_sound({1}, std::as_bytes(std::span(nine)), n));
  EXPECT_FALSE(is_sound({1}, std::as_bytes(std::span(nine).first(8)), n));
}

}  // namespace
}  // namespace starling
