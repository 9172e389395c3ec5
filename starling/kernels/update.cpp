// This file is compiled once per instruction set: foreach_target.h includes it again for each. The
// compiler vectorizes plain loops, so that a rule's formula is an ordinary function of one element.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "starling/kernels/update.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "starling/kernels/update.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <type_traits>

#include <fmt/format.h>
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "starling/core/error.h"

#undef STARLING_EACH_ELEMENT_ALONE  // tells the compiler that no element depends on another
#undef STARLING_UNROLL              // eight steps of a loop at once, by vectors; clang does so by itself
#if defined(__clang__)
#define STARLING_EACH_ELEMENT_ALONE _Pragma("clang loop vectorize(assume_safety)")
#define STARLING_UNROLL
#else
#define STARLING_EACH_ELEMENT_ALONE _Pragma("GCC ivdep")
#define STARLING_UNROLL _Pragma("GCC unroll 8")
#endif

HWY_BEFORE_NAMESPACE();
namespace starling::kernels::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A chunk of so many floats is mixed, adapted, checked and sent before the next one. So its memory
// stays in the first-level cache.
constexpr std::size_t kChunk = 64;
// The distance in floats at which memory is fetched ahead, since the hardware does not look across
// pages. On an Intel Xeon 256 to 512 are equally good. On an AMD EPYC 64 and 128 are, and 256 takes
// up to 15 % longer where other machines share the memory.
constexpr std::size_t kAhead = 128;
constexpr std::size_t kLine = 64;  // bytes

template <class T>
HWY_INLINE void fetch(const T* values) {
  const auto ahead = reinterpret_cast<std::uintptr_t>(values) + kAhead * sizeof(T);  // may be nowhere
  for (std::size_t at = 0; at < kChunk * sizeof(T); at += kLine)
    hwy::Prefetch(reinterpret_cast<const T*>(ahead + at));
}

// x[i] <- rule(x[i], Wx[i], scale g[i]). Wx may be x.
template <class Rule>
HWY_INLINE void adapt(const Rule& rule, float* x, const float* Wx, const float* g, float scale,
                      const RuleState& state, std::size_t at, std::size_t n) {
  if constexpr (Rule::kStates == 0) {
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) x[i] = rule(x[i], Wx[i], scale * g[i]);
  } else if constexpr (Rule::kStates == 1) {
    float* const m = state.m + at;
    fetch(m);
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) x[i] = rule(x[i], Wx[i], scale * g[i], m[i]);
  } else if constexpr (Rule::kStates == 2) {
    float* const m = state.m + at;
    float* const v = state.v + at;
    fetch(m), fetch(v);
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) x[i] = rule(x[i], Wx[i], scale * g[i], m[i], v[i]);
  } else {
    float* const m = state.m + at;
    float* const v = state.v + at;
    float* const b = state.b + at;
    fetch(m), fetch(v), fetch(b);
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) x[i] = rule(x[i], Wx[i], scale * g[i], m[i], v[i], b[i]);
  }
}

// 1 if one of the values is not finite, else 0.
HWY_INLINE std::uint32_t not_finite(const float* values, std::size_t n) {
  std::uint32_t carry = 0;
  for (std::size_t i = 0; i < n; ++i) carry |= full_exponent(values[i]);
  return carry >> 31;
}

// The values from `at` on, as floats: in place, or decoded into `room`.
HWY_INLINE const float* floats(const Sent& sent, std::size_t at, std::size_t n, float* room) {
  if (sent.wire == Wire::fp32) {
    const float* const values = static_cast<const float*>(sent.values) + at;
    fetch(values);
    return values;
  }
  const std::uint16_t* const values = static_cast<const std::uint16_t*>(sent.values) + at;
  fetch(values);
  if (sent.wire == Wire::bf16) {
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) room[i] = from_bf16(values[i]);
  } else {
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) room[i] = from_fp16(values[i]);
  }
  return room;
}

// The codes from `at` on, a byte each: in place, or spread out in `room`.
HWY_INLINE const std::uint8_t* codes(const Sent& sent, std::size_t at, std::size_t n, std::uint8_t* room) {
  const std::uint8_t* const bytes = static_cast<const std::uint8_t*>(sent.values) + bytes_of(sent.wire, at);
  fetch(bytes);
  if (sent.wire == Wire::int8) return bytes;
  STARLING_EACH_ELEMENT_ALONE
  for (std::size_t i = 0; i < bytes_of(Wire::int4, n); ++i) {
    room[2 * i] = bytes[i] & 15u;
    room[2 * i + 1] = static_cast<std::uint8_t>(bytes[i] >> 4);
  }
  return room;
}

// mixed = Wx + W delta D. Returns false, and mixes nothing, if the grids are too far apart.
HWY_INLINE bool mix_codes(const Mix& edge, const float* Wx, float* mixed, std::size_t at, std::size_t n) {
  const Pair pair(edge.theirs.wire, edge.theirs.exponent, edge.mine.exponent);
  if (!pair.mixes) return false;
  alignas(64) std::uint8_t their_room[kChunk], my_room[kChunk];
  const std::uint8_t* const theirs = codes(edge.theirs, at, n, their_room);
  const std::uint8_t* const mine = codes(edge.mine, at, n, my_room);
  const float w = edge.weight * power_of_two(pair.exponent);
  std::int32_t largest = 0;
  std::uint32_t sum = 0;
  STARLING_EACH_ELEMENT_ALONE
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t D = pair.difference(theirs[i], mine[i]);
    mixed[i] = kernels::mixed(Wx[i], w, D);
    sum += static_cast<std::uint32_t>(D);
    const std::int32_t sign = D >> 31, magnitude = (D ^ sign) - sign;
    largest = std::max(largest, magnitude);
  }
  if (edge.measured != nullptr) edge.measured->add({largest, sum});
  return true;
}

// Copies the values. Past the caches, `to` must be the beginning of a cache line.
template <class T>
HWY_INLINE void send(const T* values, std::size_t n, T* to, bool past_caches) {
  if (!past_caches) {
    std::copy_n(values, n, to);
    return;
  }
  const hn::ScalableTag<T> d;
  std::size_t i = 0;
  for (; i + hn::Lanes(d) <= n; i += hn::Lanes(d)) hn::Stream(hn::LoadU(d, values + i), d, to + i);
  for (; i < n; ++i) to[i] = values[i];
}

// Sends the codes of x on the block's grid. Returns the sum of the grid points.
HWY_INLINE std::uint32_t send_codes(const float* x, std::size_t at, std::size_t n, const WireBlock& outgoing,
                                    bool past_caches) {
  alignas(64) std::uint8_t encoded[kChunk];
  const float per_step = power_of_two(-outgoing.exponent);
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t k = grid_point(x[i] * per_step);
    sum += k;
    encoded[i] = static_cast<std::uint8_t>(k);
  }
  std::uint8_t* const to = static_cast<std::uint8_t*>(outgoing.values) + bytes_of(outgoing.wire, at);
  if (outgoing.wire == Wire::int8) {
    send(encoded, n, to, past_caches);
    return sum;
  }
  if (n % 2 != 0) encoded[n] = 0;
  for (std::size_t i = 0; i < bytes_of(Wire::int4, n); ++i)
    to[i] = static_cast<std::uint8_t>((encoded[2 * i] & 15u) | encoded[2 * i + 1] << 4);
  return sum;
}

// Writes x in bf16 or fp16. Returns 0 if all written values are finite.
HWY_INLINE std::uint32_t encode(const float* x, std::size_t n, Wire format, std::uint16_t* to) {
  std::uint32_t bad = 0;
  if (format == Wire::bf16) {
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) {
      to[i] = to_bf16(x[i]);
      bad |= static_cast<std::uint32_t>(!finite_bf16(to[i]));
    }
  } else {
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < n; ++i) {
      to[i] = to_fp16(x[i]);
      bad |= static_cast<std::uint32_t>(!finite_fp16(to[i]));
    }
  }
  return bad;
}

// x[i] <- p[i] for each p[i] that is not x[i] rounded. Returns 0 if all p are finite.
HWY_INLINE std::uint32_t take_changes(const Parameters& parameters, float* x, std::size_t at, std::size_t n) {
  alignas(64) std::uint16_t rounded[kChunk];
  alignas(64) float room[kChunk];
  const std::uint16_t* const p = static_cast<const std::uint16_t*>(parameters.values) + at;
  const float* const values = floats({parameters.values, parameters.format}, at, n, room);
  encode(x, n, parameters.format, rounded);
  STARLING_EACH_ELEMENT_ALONE
  for (std::size_t i = 0; i < n; ++i) {
    // All bits or none.
    const std::uint32_t changed = 0 - static_cast<std::uint32_t>(rounded[i] != p[i]);
    x[i] = std::bit_cast<float>((std::bit_cast<std::uint32_t>(x[i]) & ~changed) |
                                (std::bit_cast<std::uint32_t>(values[i]) & changed));
  }
  return not_finite(values, n);
}

// Encodes and sends x. Returns 0 if all values sent are finite.
HWY_INLINE std::uint32_t send_encoded(const float* x, std::size_t at, std::size_t n,
                                      const WireBlock& outgoing, bool past_caches) {
  if (outgoing.wire == Wire::fp32) {
    send(x, n, static_cast<float*>(outgoing.values) + at, past_caches);
    return 0;  // the caller checks x
  }
  if (is_modular(outgoing.wire)) {
    const std::uint32_t sum = send_codes(x, at, n, outgoing, past_caches);
    if (outgoing.sum != nullptr) *outgoing.sum += sum;
    return 0;  // every code is a number
  }
  alignas(64) std::uint16_t encoded[kChunk];
  const std::uint32_t bad = encode(x, n, outgoing.wire, encoded);
  send(encoded, n, static_cast<std::uint16_t*>(outgoing.values) + at, past_caches);
  return bad;
}

// The number of values before the next cache line.
std::size_t before_line(const WireBlock& outgoing) {
  return (kLine - reinterpret_cast<std::uintptr_t>(outgoing.values) % kLine) % kLine * 2 /
         bytes_of(outgoing.wire, 2);
}

// The rule of a step without a gradient.
struct NoRule {};

template <class Rule>
bool update_all(const Rule& rule, std::span<const Mix> mixes, const Parameters& p, Gradient gradient,
                const RuleState& state, WireBlock outgoing, std::size_t n) {
  constexpr bool kAdapts = !std::is_same_v<Rule, NoRule>;
  const Rule step = rule;  // a copy on the stack: no store to memory can change it
  const Wire format = p.format;
  const bool narrow = format != Wire::fp32;
  float* const x_all = narrow ? p.master : static_cast<float*>(p.values);
  alignas(64) float mixed[kChunk], their_room[kChunk], my_room[kChunk], g_room[kChunk];
  std::uint32_t bad = 0;
  // Chunks begin at cache lines of `outgoing`: writing a part of a line past the caches is slow. A
  // line of int4 holds more values than a chunk; they are few enough bytes for the caches.
  const bool stream = outgoing.values != nullptr && outgoing.stream && outgoing.wire != Wire::int4;
  std::size_t count = stream ? std::min(n, before_line(outgoing)) : 0;
  bool whole_lines = count == 0;
  for (std::size_t at = 0; at < n; at += count, whole_lines = true) {
    if (whole_lines) count = std::min(kChunk, n - at);
    float* const x = x_all + at;
    const float* Wx = x;
    fetch(x);
    std::uint32_t bad_parameters = narrow ? take_changes(p, x, at, count) : 0;
    bool moves = kAdapts;
    for (const Mix& edge : mixes) {
      float* const to = !kAdapts && &edge == &mixes.back() ? x : mixed;
      if (is_modular(edge.theirs.wire)) {
        if (!mix_codes(edge, Wx, to, at, count)) continue;
      } else {
        const float w = edge.weight;
        const float* const theirs = floats(edge.theirs, at, count, their_room);
        const float* const mine = floats(edge.mine, at, count, my_room);
        STARLING_EACH_ELEMENT_ALONE
        for (std::size_t i = 0; i < count; ++i) to[i] = kernels::mixed(Wx[i], w, theirs[i], mine[i]);
      }
      Wx = to;
      moves = true;
    }
    if constexpr (kAdapts) {
      const float* const g = floats({gradient.values, format}, at, count, g_room);
      adapt(step, x, Wx, g, gradient.scale, state, at, count);
      if (gradient.cleared != nullptr)
        std::memset(static_cast<std::byte*>(gradient.cleared) + bytes_of(format, at), 0,
                    bytes_of(format, count));
    } else if (Wx != x) {  // the last gradient was not mixed
      std::copy_n(Wx, count, x);
    }
    if (narrow && moves)
      bad_parameters = encode(x, count, format, static_cast<std::uint16_t*>(p.values) + at);
    bad |= not_finite(x, count) | bad_parameters;
    if (outgoing.values != nullptr) bad |= send_encoded(x, at, count, outgoing, stream && whole_lines);
  }
  if (stream) hwy::FlushStream();  // before another thread learns that the block is there
  return bad == 0;
}

}  // namespace

bool update(const Step& step, std::span<const Mix> mixes, const Parameters& x, Gradient g, RuleState state,
            WireBlock outgoing, std::size_t n) {
  if (g.values == nullptr) return update_all(NoRule{}, mixes, x, g, state, outgoing, n);
  return std::visit([&](const auto& rule) { return update_all(rule, mixes, x, g, state, outgoing, n); },
                    step);
}

// at(i) is value i. There are sixteen sums side by side for every width of registers: the same bits
// everywhere.
template <class At>
HWY_INLINE double squares_of(const At& at, std::size_t n) {
  constexpr std::size_t kSums = 16;
  double sums[kSums] = {};
  std::size_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (std::size_t k = 0; k < kSums; ++k) {
      const double value = at(i + k);
      sums[k] += value * value;
    }
  }
  for (std::size_t k = 0; i < n; ++i, ++k) sums[k] += static_cast<double>(at(i)) * at(i);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

double sum_of_squares(const void* values, Wire format, std::size_t n) {
  if (format == Wire::fp32) {
    const float* const floats = static_cast<const float*>(values);
    return squares_of([floats](std::size_t i) { return floats[i]; }, n);
  }
  const std::uint16_t* const halves = static_cast<const std::uint16_t*>(values);
  if (format == Wire::bf16) return squares_of([halves](std::size_t i) { return from_bf16(halves[i]); }, n);
  return squares_of([halves](std::size_t i) { return from_fp16(halves[i]); }, n);
}

// Whether one of the values has all bits of the exponent set.
template <class Bits>
HWY_INLINE bool some_exponent_full(std::span<const std::byte> values, Bits exponent) {
  const std::size_t n = values.size() / sizeof(Bits);
  Bits bad = 0;
  STARLING_UNROLL
  for (std::size_t i = 0; i < n; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, values.data() + i * sizeof bits, sizeof bits);
    bad |= static_cast<Bits>((bits & exponent) == exponent ? ~0 : 0);
  }
  return bad != 0;
}

bool all_finite(std::span<const std::byte> values, Wire format) {
  if (format == Wire::fp32) return !some_exponent_full(values, std::uint32_t{0x7f800000});
  if (format == Wire::bf16) return !some_exponent_full(values, std::uint16_t{0x7f80});
  if (format == Wire::fp16) return !some_exponent_full(values, std::uint16_t{0x7c00});
  return true;  // a code is a number
}

void renew(const Parameters& p, float* taken, float* x, float* x_tilde, float scale, std::size_t n) {
  const bool narrow = p.format != Wire::fp32;
  float* const all = narrow ? p.master : static_cast<float*>(p.values);
  alignas(64) float d[kChunk];
  for (std::size_t at = 0, count = 0; at < n; at += count) {
    count = std::min(kChunk, n - at);
    float* const mine = all + at;
    float* const copy = taken + at;
    float* const theirs = x + at;
    fetch(mine), fetch(copy), fetch(theirs);
    if (narrow) take_changes(p, mine, at, count);
    STARLING_EACH_ELEMENT_ALONE
    for (std::size_t i = 0; i < count; ++i) {
      d[i] = scale * (mine[i] - copy[i]);
      theirs[i] += d[i];
      copy[i] = mine[i] = theirs[i];
    }
    if (x_tilde != nullptr) {
      float* const tilde = x_tilde + at;
      fetch(tilde);
      STARLING_EACH_ELEMENT_ALONE
      for (std::size_t i = 0; i < count; ++i) tilde[i] += d[i];
    }
    if (narrow) encode(mine, count, p.format, static_cast<std::uint16_t*>(p.values) + at);
  }
}

double squared_distance(const Sent& a, const Sent& b, std::size_t n) {
  double sum = 0;
  alignas(64) float room_a[kChunk], room_b[kChunk];
  alignas(64) std::uint8_t codes_a[kChunk], codes_b[kChunk];
  const bool modular = is_modular(a.wire);
  const Pair pair(a.wire, a.exponent, b.exponent);
  const double step = modular ? power_of_two(pair.exponent) : 1;
  if (modular && !pair.mixes) return 0;
  for (std::size_t at = 0, count = 0; at < n; at += count) {
    count = std::min(kChunk, n - at);
    if (modular) {
      const std::uint8_t* const theirs = codes(a, at, count, codes_a);
      const std::uint8_t* const mine = codes(b, at, count, codes_b);
      std::int32_t squares = 0;  // of differences below 2^7: below 2^20
      STARLING_EACH_ELEMENT_ALONE
      for (std::size_t i = 0; i < count; ++i) {
        const std::int32_t D = pair.difference(theirs[i], mine[i]);
        squares += D * D;
      }
      sum += squares;
    } else {
      const float* const theirs = floats(a, at, count, room_a);
      const float* const mine = floats(b, at, count, room_b);
      sum += squares_of([&](std::size_t i) { return theirs[i] - mine[i]; }, count);
    }
  }
  return sum * step * step;
}

}  // namespace starling::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace starling::kernels {
namespace {

#if HWY_ARCH_ARM
constexpr std::string_view kOwnTarget = "neon";
#else
constexpr std::string_view kOwnTarget = "baseline";
#endif

// The features that each of Highway's targets needs (hwy/ops/set_macros-inl.h). GCC asks the
// processor and the system for them.
#if HWY_ARCH_X86
bool has_sse4() {
  return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
         __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
         __builtin_cpu_supports("aes");
}
bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
#if !defined(__clang__)  // clang cannot ask for this one, which every processor with AVX2 has
         __builtin_cpu_supports("f16c") &&
#endif
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw");
}
#endif

#define STARLING_KERNELS(name, target)                                               \
  Kernels {                                                                          \
    name, target::update, target::sum_of_squares, target::all_finite, target::renew, \
        target::squared_distance                                                     \
  }
struct Supported {
  std::array<Kernels, 4> all{};
  std::size_t count = 0;
  Supported() {
#if HWY_TARGETS & HWY_AVX3 && HWY_STATIC_TARGET != HWY_AVX3
    if (has_avx512()) all[count++] = STARLING_KERNELS("avx512", N_AVX3);
#endif
#if HWY_TARGETS & HWY_AVX2 && HWY_STATIC_TARGET != HWY_AVX2
    if (has_avx2()) all[count++] = STARLING_KERNELS("avx2", N_AVX2);
#endif
#if HWY_TARGETS & HWY_SSE4 && HWY_STATIC_TARGET != HWY_SSE4
    if (has_sse4()) all[count++] = STARLING_KERNELS("sse4", N_SSE4);
#endif
    all[count++] = STARLING_KERNELS(kOwnTarget, HWY_NAMESPACE);
  }
};
#undef STARLING_KERNELS

}  // namespace

std::span<const Kernels> supported_kernels() {
  static const Supported supported;
  return {supported.all.data(), supported.count};
}

const Kernels& kernels_named(std::string_view isa) {
  const std::span<const Kernels> all = supported_kernels();
  if (isa.empty()) return all.front();
  std::string names;
  for (const Kernels& kernels : all) {
    if (kernels.isa == isa) return kernels;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", kernels.isa);
  }
  throw UsageError(
      fmt::format("STARLING_ISA={} is not an instruction set that this machine and this build of "
                  "Starling have: allowed are {}",
                  isa, names));
}

const Kernels& best_kernels() {
  static const Kernels& best = []() -> const Kernels& {
    const char* const forced = std::getenv("STARLING_ISA");
    return kernels_named(forced == nullptr ? "" : forced);
  }();
  return best;
}

}  // namespace starling::kernels
#endif  // HWY_ONCE
