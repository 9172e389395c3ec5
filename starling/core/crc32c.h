// The checksum of frames and of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace starling {

// CRC32C (Castagnoli), with the processor's instruction where it has one. `seed` is the CRC of what came before.
std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

}  // namespace starling
