// The checksum of frames and of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace starling {

// CRC32C (Castagnoli), with the processor's instructions if it has them. `seed` is the CRC of the
// bytes before.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The implementations that this processor can run. The fastest is last, and crc32c() uses it. They
// take and return the register, which is the CRC before its final complement.
struct Crc32cWay {
  std::string_view name;
  std::uint32_t (*update)(std::uint32_t before, const std::byte* bytes, std::size_t n);
};
std::span<const Crc32cWay> crc32c_ways();

}  // namespace starling
