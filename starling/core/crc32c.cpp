#include "starling/core/crc32c.h"

#include <array>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
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

// x^n modulo the polynomial.
constexpr std::uint32_t power(int n) {
  std::uint32_t value = 0x80000000;  // 1: the highest power is the lowest bit
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
  return value;
}

// Where a processor multiplies polynomials: 128 bits, each a power of x, are worth as much in other 128 bits that come
// kLater bits after them, once their halves are multiplied by what x^kLater (and x^64 for the earlier half) leaves modulo
// the polynomial. A product of 32 and 64 reflected bits lies 33 bits too low, so these powers are taken off (Gopal et
// al., Fast CRC computation for generic polynomials using PCLMULQDQ, Intel 2009).
template <int kLater>
__attribute__((target("avx512f,avx512vl,vpclmulqdq"))) inline __m512i fold(__m512i earlier, __m512i later) {
  constexpr auto kEarlierHalf = static_cast<int>(power(kLater + 31)),
                 kLaterHalf = static_cast<int>(power(kLater - 33));
  const __m512i factors = _mm512_set4_epi32(0, kLaterHalf, 0, kEarlierHalf);
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(earlier, factors, 0x00),
                                   _mm512_clmulepi64_epi128(earlier, factors, 0x11), later,
                                   0x96);  // the exclusive or of the three
}

constexpr std::size_t kRegister = 64, kFolded = 4 * kRegister;  // bytes

__attribute__((target("sse4.2,avx512f,avx512vl,vpclmulqdq"))) std::uint32_t update_by_folding(
    std::uint32_t crc, const std::byte* p, std::size_t n) {
  if (n < kFolded) return update_by_sse42(crc, p, n);
  __m512i a = _mm512_loadu_si512(p), b = _mm512_loadu_si512(p + kRegister),
          c = _mm512_loadu_si512(p + 2 * kRegister), d = _mm512_loadu_si512(p + 3 * kRegister);
  a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (p += kFolded, n -= kFolded; n >= kFolded; p += kFolded, n -= kFolded) {
    a = fold<8 * kFolded>(a, _mm512_loadu_si512(p));
    b = fold<8 * kFolded>(b, _mm512_loadu_si512(p + kRegister));
    c = fold<8 * kFolded>(c, _mm512_loadu_si512(p + 2 * kRegister));
    d = fold<8 * kFolded>(d, _mm512_loadu_si512(p + 3 * kRegister));
  }
  const __m512i last = fold<8 * kRegister>(fold<8 * kRegister>(fold<8 * kRegister>(a, b), c), d);
  // The CRC of these 64 bytes, begun with nothing, is that of all before.
  alignas(kRegister) std::array<std::byte, kRegister> folded;
  _mm512_store_si512(folded.data(), last);
  return update_by_sse42(update_by_sse42(0, folded.data(), folded.size()), p, n);
}

std::vector<Crc32cWay> ways() {
  std::vector<Crc32cWay> all{{"by table", update_by_table}};
  if (!__builtin_cpu_supports("sse4.2")) return all;
  all.push_back({"by SSE4.2", update_by_sse42});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("vpclmulqdq"))
    all.push_back({"by folding", update_by_folding});
  return all;
}

#elif defined(__ARM_FEATURE_CRC32)

std::uint32_t update_by_instruction(std::uint32_t crc, const std::byte* p, std::size_t n) {
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t value;
    std::memcpy(&value, p, sizeof value);
    crc = __crc32cd(crc, value);
  }
  for (; n > 0; --n, ++p) crc = __crc32cb(crc, static_cast<std::uint8_t>(*p));
  return crc;
}

std::vector<Crc32cWay> ways() {
  return {{"by table", update_by_table}, {"by the instruction", update_by_instruction}};
}

#else

std::vector<Crc32cWay> ways() { return {{"by table", update_by_table}}; }

#endif

}  // namespace

std::span<const Crc32cWay> crc32c_ways() {
  static const std::vector<Crc32cWay> all = ways();
  return all;
}

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed) {
  static const auto update = crc32c_ways().back().update;
  return ~update(~seed, bytes.data(), bytes.size());
}

}  // namespace starling
