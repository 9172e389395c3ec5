#include "starling/core/crc32c.h"

#include <array>
#include <cstring>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#define STARLING_CRC32_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define STARLING_CRC32_TARGET __attribute__((target("+crc")))
#endif

namespace starling {

// The functions below work on the register: the CRC before its final complement, least significant
// bit first.

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

// The fallback runs on few machines, so every compilation checks it: 32 zero bytes, RFC 3720 B.4.
constexpr std::array<std::byte, 32> kZeros{};
static_assert(~update_by_table(~0u, kZeros.data(), kZeros.size()) == 0x8a9136aa);

#if defined(STARLING_CRC32_TARGET)

#if defined(__x86_64__)
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
STARLING_CRC32_TARGET inline std::uint32_t of_8_bytes(std::uint32_t crc, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
STARLING_CRC32_TARGET inline std::uint32_t of_byte(std::uint32_t crc, std::uint8_t byte) {
  return _mm_crc32_u8(crc, byte);
}
#else
bool has_instruction() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
STARLING_CRC32_TARGET inline std::uint32_t of_8_bytes(std::uint32_t crc, std::uint64_t word) {
  return __crc32cd(crc, word);
}
STARLING_CRC32_TARGET inline std::uint32_t of_byte(std::uint32_t crc, std::uint8_t byte) {
  return __crc32cb(crc, byte);
}
#endif

// The instruction takes three cycles, but one can start in each cycle. Long inputs are therefore
// cut into three lanes that run side by side. To join lanes, a CRC is moved past kLane zero bytes.
// The move is linear, so one table per byte of the CRC is enough.
// Ten times three, or six times five, are 256 bytes less than 64 KB.
constexpr std::size_t kLane = 2176;
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

struct ThreeLanes {
  std::uint32_t a, b = 0, c = 0;

  // Takes one line of each lane: from p, from one lane behind it and from two lanes behind it.
  STARLING_CRC32_TARGET inline void take_line(const std::byte* p) {
    for (std::size_t i = 0; i < kLine; i += 8) {
      a = of_8_bytes(a, word(p + i));
      b = of_8_bytes(b, word(p + kLane + i));
      c = of_8_bytes(c, word(p + 2 * kLane + i));
    }
  }
  std::uint32_t joined() const { return past_lane(past_lane(a) ^ b) ^ c; }
};

// The hardware prefetcher does not look this far ahead. A prefetch past the end does nothing.
void fetch(const std::byte* p) { __builtin_prefetch(p); }

STARLING_CRC32_TARGET std::uint32_t update_by_instruction(std::uint32_t crc, const std::byte* p,
                                                          std::size_t n) {
  constexpr std::size_t kAtOnce = 3 * kLane;
  for (; n >= kAtOnce; n -= kAtOnce, p += kAtOnce) {
    ThreeLanes lanes{crc};
    for (std::size_t line = 0; line < kLane; line += kLine) {
      for (std::size_t lane = 0; lane < kAtOnce; lane += kLane) fetch(p + kAtOnce + lane + line);
      lanes.take_line(p + line);
    }
    crc = lanes.joined();
  }
  for (; n >= 8; n -= 8, p += 8) crc = of_8_bytes(crc, word(p));
  for (; n > 0; --n, ++p) crc = of_byte(crc, static_cast<std::uint8_t>(*p));
  return crc;
}

#endif

#if defined(__x86_64__)

// x^n modulo the polynomial.
constexpr int power(int n) {
  std::uint32_t value = 0x80000000;  // 1: the highest power is the lowest bit
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
  return static_cast<int>(value);
}

// For processors that multiply polynomials. Take 128 bits as coefficients of powers of x. They can
// be added to other 128 bits that come kLater bits later, if their halves are first multiplied by
// the remainder of x^kLater (and x^64 for the earlier half) modulo the polynomial. A product of 32
// and 64 reflected bits lies 33 bits too low, so 33 is taken off these powers. See Gopal et al.,
// Fast CRC computation for generic polynomials using PCLMULQDQ, Intel 2009.
template <int kLater>
constexpr int kEarlierHalf = power(kLater + 31);
template <int kLater>
constexpr int kLaterHalf = power(kLater - 33);

template <int kLater>
__attribute__((target("avx2,vpclmulqdq"))) inline __m256i fold(__m256i earlier, __m256i later) {
  const __m256i factors =
      _mm256_broadcastsi128_si256(_mm_set_epi32(0, kLaterHalf<kLater>, 0, kEarlierHalf<kLater>));
  return _mm256_xor_si256(_mm256_xor_si256(_mm256_clmulepi64_epi128(earlier, factors, 0x00),
                                           _mm256_clmulepi64_epi128(earlier, factors, 0x11)),
                          later);
}

template <int kLater>
__attribute__((target("avx512f,avx512vl,vpclmulqdq"))) inline __m512i fold(__m512i earlier, __m512i later) {
  const __m512i factors = _mm512_set4_epi32(0, kLaterHalf<kLater>, 0, kEarlierHalf<kLater>);
  return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(earlier, factors, 0x00),
                                   _mm512_clmulepi64_epi128(earlier, factors, 0x11), later,
                                   0x96);  // the exclusive or of the three
}

// The CRC instruction and 256-bit multiplications use different units of a processor, so five lanes
// run side by side. The instruction takes three of them. The multiplications take two, as one lane
// of double length.
__attribute__((target("sse4.2,avx2,vpclmulqdq"))) std::uint32_t update_by_both(std::uint32_t crc,
                                                                               const std::byte* p,
                                                                               std::size_t n) {
  constexpr std::size_t kAtOnce = 5 * kLane, kRegister = 32, kFolded = 2 * kLine,
                        kFolds = kFolded / kRegister;
  for (; n >= kAtOnce; n -= kAtOnce, p += kAtOnce) {
    ThreeLanes lanes{crc};
    __m256i folds[kFolds] = {};
    for (std::size_t line = 0; line < kLane; line += kLine) {
      for (std::size_t lane = 0; lane < 3 * kLane; lane += kLane) fetch(p + kAtOnce + lane + line);
      const std::byte* const folded = p + 3 * kLane + 2 * line;
      fetch(folded + kAtOnce);
      fetch(folded + kAtOnce + kLine);
      for (std::size_t i = 0; i < kFolds; ++i)
        folds[i] = fold<8 * kFolded>(
            folds[i], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(folded + kRegister * i)));
      lanes.take_line(p + line);
    }
    for (std::size_t i = 1; i < kFolds; ++i) folds[i] = fold<8 * kRegister>(folds[i - 1], folds[i]);
    alignas(kRegister) std::array<std::byte, kRegister> last;
    _mm256_store_si256(reinterpret_cast<__m256i*>(last.data()), folds[kFolds - 1]);
    crc = past_lane(past_lane(lanes.joined())) ^ update_by_instruction(0, last.data(), last.size());
  }
  return update_by_instruction(crc, p, n);
}

__attribute__((target("sse4.2,avx512f,avx512vl,vpclmulqdq"))) std::uint32_t update_by_folding(
    std::uint32_t crc, const std::byte* p, std::size_t n) {
  constexpr std::size_t kRegister = 64, kFolded = 4 * kRegister;
  if (n < kFolded) return update_by_instruction(crc, p, n);
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
  // The CRC of these 64 bytes, started from nothing, equals the CRC of all bytes before.
  alignas(kRegister) std::array<std::byte, kRegister> folded;
  _mm512_store_si512(folded.data(), last);
  return update_by_instruction(update_by_instruction(0, folded.data(), folded.size()), p, n);
}

#endif

std::vector<Crc32cWay> ways() {
  std::vector<Crc32cWay> all{{"by table", update_by_table}};
#if defined(STARLING_CRC32_TARGET)
  if (!has_instruction()) return all;
  all.push_back({"by the instruction", update_by_instruction});
#endif
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("vpclmulqdq")) return all;
  if (__builtin_cpu_supports("avx2")) all.push_back({"by both", update_by_both});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl"))
    all.push_back({"by folding", update_by_folding});
#endif
  return all;
}

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
