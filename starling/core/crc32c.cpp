#include "starling/core/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace starling {

// The functions below work on the register (the CRC before its final complement), least significant bit
// first.

namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, reflected

using Table = std::array<std::uint32_t, 256>;

constexpr Table make_byte_table() {
  Table table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

constexpr Table kByteTable = make_byte_table();

constexpr std::uint32_t update_by_table(std::uint32_t crc, const std::byte* p, std::size_t n) {
  for (; n > 0; --n, ++p) crc = (crc >> 8) ^ kByteTable[(crc ^ static_cast<std::uint32_t>(*p)) & 0xff];
  return crc;
}

// The fallback runs on few machines, so it proves itself wherever this is compiled: 32 zero bytes, RFC 3720
// B.4.
constexpr std::array<std::byte, 32> kZeros{};
static_assert(~update_by_table(~0u, kZeros.data(), kZeros.size()) == 0x8a9136aa);

#if defined(__x86_64__)

// The instruction takes three cycles but one can start in each, so long inputs are cut into three lanes which
// run side by side. Joining lanes means moving a CRC past kLane zero bytes, which is linear: one table per
// byte of the CRC.
constexpr std::size_t kLane = 2048;
constexpr std::size_t kLine = 64;  // of the cache

std::array<Table, 4> make_lane_shift() {
  std::array<Table, 4> shift{};
  for (std::size_t byte = 0; byte < 4; ++byte) {
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t crc = i << (8 * byte);
      for (std::size_t zero = 0; zero < kLane; ++zero) crc = (crc >> 8) ^ kByteTable[crc & 0xff];
      shift[byte][i] = crc;
    }
  }
  return shift;
}

std::uint32_t past_lane(std::uint32_t crc) {
  static const std::array<Table, 4> shift = make_lane_shift();
  return shift[0][crc & 0xff] ^ shift[1][(crc >> 8) & 0xff] ^ shift[2][(crc >> 16) & 0xff] ^
         shift[3][crc >> 24];
}

std::uint64_t word(const std::byte* p) {
  std::uint64_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

__attribute__((target("sse4.2"))) std::uint32_t update_by_sse42(std::uint32_t crc, const std::byte* p,
                                                                std::size_t n) {
  for (; n >= 3 * kLane; n -= 3 * kLane, p += 3 * kLane) {
    std::uint64_t a = crc, b = 0, c = 0;
    for (std::size_t line = 0; line < kLane; line += kLine) {
      // The same place in the next three lanes: the processor by itself does not see so far ahead. Past the end nothing
      // happens.
      for (std::size_t lane = 3; lane < 6; ++lane) _mm_prefetch(p + lane * kLane + line, _MM_HINT_T0);
      for (std::size_t i = line; i < line + kLine; i += 8) {
        a = _mm_crc32_u64(a, word(p + i));
        b = _mm_crc32_u64(b, word(p + kLane + i));
        c = _mm_crc32_u64(c, word(p + 2 * kLane + i));
      }
    }
    crc = past_lane(past_lane(static_cast<std::uint32_t>(a)) ^ static_cast<std::uint32_t>(b)) ^
          static_cast<std::uint32_t>(c);
  }
  std::uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8) wide = _mm_crc32_u64(wide, word(p));
  crc = static_cast<std::uint32_t>(wide);
  for (; n > 0; --n, ++p) crc = _mm_crc32_u8(crc, static_cast<std::uint8_t>(*p));
  return crc;
}

std::uint32_t update(std::uint32_t crc, const std::byte* p, std::size_t n) {
  static const bool fast = __builtin_cpu_supports("sse4.2");
  return fast ? update_by_sse42(crc, p, n) : update_by_table(crc, p, n);
}

#elif defined(__ARM_FEATURE_CRC32)

std::uint32_t update(std::uint32_t crc, const std::byte* p, std::size_t n) {
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t value;
    std::memcpy(&value, p, sizeof value);
    crc = __crc32cd(crc, value);
  }
  for (; n > 0; --n, ++p) crc = __crc32cb(crc, static_cast<std::uint8_t>(*p));
  return crc;
}

#else

std::uint32_t update(std::uint32_t crc, const std::byte* p, std::size_t n) {
  return update_by_table(crc, p, n);
}

#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
  return ~update(~seed, bytes.data(), bytes.size());
}

}  // namespace starling
