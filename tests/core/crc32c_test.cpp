#include "starling/core/crc32c.h"

#include <random>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace starling {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

// CRC32C by its definition, one bit at a time.
std::uint32_t plain_crc32c(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffff;
  for (const std::byte b : bytes) {
    crc ^= static_cast<std::uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  return ~crc;
}

std::vector<std::byte> random_bytes(std::size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(n);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0x00})), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte{0xff})), 0x62a8ab43u);
}

TEST(Crc32c, EveryWayLengthAndAlignmentAgreesWithTheDefinition) {
  const auto bytes = random_bytes(40'010, 1);
  std::vector<std::size_t> lengths{6143,   6144,   6145,   6527,   6528,   6529,   10'879, 10'880,
                                   10'881, 12'287, 12'288, 13'056, 20'001, 21'760, 28'288, 39'999};
  for (std::size_t n = 0; n < 70; ++n) lengths.push_back(n);
  for (std::size_t n = 250; n < 600; n += 3) lengths.push_back(n);
  for (const Crc32cWay& way : crc32c_ways()) {
    for (std::size_t n : lengths) {
      for (std::size_t start = 0; start < 9; ++start) {
        const auto part = std::span(bytes).subspan(start, n);
        ASSERT_EQ(~way.update(~0u, part.data(), n), plain_crc32c(part))
            << way.name << ": " << n << " bytes from " << start;
        ASSERT_EQ(crc32c(part), plain_crc32c(part)) << n << " bytes from " << start;
      }
    }
  }
}

TEST(Crc32c, ContinuesFromASeed) {
  const auto bytes = random_bytes(20'000, 2);
  for (std::size_t cut : {0u, 1u, 7u, 64u, 255u, 256u, 6144u, 6528u, 10'001u, 10'880u, 20'000u}) {
    const auto all = std::span(bytes);
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
  }
}

}  // namespace
}  // namespace starling
