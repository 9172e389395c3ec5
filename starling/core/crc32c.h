// The checksum of frames and of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace starling {

// CRC32C (Castagnoli), with the processor's instructions where it has them. `seed` is the CRC of what came before.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// What it may be computed with on this processor, the fastest last: crc32c() takes that. Of the register, which is the CRC
// before its final complement.
struct Crc32cWay {
  std::string_view name;
  std::uint32_t (*update)(std::uint32_t before, const std::byte* bytes, std::size_t n);
};
std::span<const Crc32cWay> crc32c_ways();

}  // namespace starling
