// The step of combine-then-adapt (kernels/update.h) on a GPU: the same formulas of one element,
// from the same files, over many segments in one launch.
//
// NVRTC compiles it at run time with the options of update_program() (program.h): nothing contracts
// to fused multiply-adds, division and square root round as IEEE 754 says, and denormal numbers
// stay as they are. So the bits are those of the processor. (The bits of a NaN may differ: each
// processor chooses its own.)
//
// A block of threads takes kPerThreadBlock values of one segment. No thread needs another's values,
// and each reads everything it needs before it writes. Measurements of codes and sums of grid
// points are added up within each warp first; neither depends on the order.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "starling/kernels/arguments.h"
#include "starling/kernels/codes.h"
#include "starling/kernels/cuda/segment.h"
#include "starling/kernels/format.h"
#include "starling/kernels/rules/all.h"

namespace starling::kernels::cuda {

// N adjacent values, read or written at once if they are aligned.
template <class T, std::uint32_t N>
struct alignas(N * sizeof(T)) Side {
  T at[N];
};

template <class T, std::uint32_t N>
bool at_once(const Side<T, N>*, const void* where, std::uint32_t count) {
  return count == N && reinterpret_cast<std::uintptr_t>(where) % sizeof(Side<T, N>) == 0;
}

// The first `count` values, and zeros.
template <std::uint32_t N = kSide, class T>
Side<T, N> read(const T* from, std::uint32_t count) {
  const auto* const side = reinterpret_cast<const Side<T, N>*>(from);
  if (at_once(side, from, count)) return *side;
  Side<T, N> values = {};
  for (std::uint32_t i = 0; i < N; ++i) {
    if (i < count) values.at[i] = from[i];
  }
  return values;
}

template <class T, std::uint32_t N>
void write(const Side<T, N>& values, T* to, std::uint32_t count) {
  auto* const side = reinterpret_cast<Side<T, N>*>(to);
  if (at_once(side, to, count)) {
    *side = values;
    return;
  }
  for (std::uint32_t i = 0; i < N; ++i) {
    if (i < count) to[i] = values.at[i];
  }
}

using Floats = Side<float, kSide>;
using Halves = Side<std::uint16_t, kSide>;
using Codes = Side<std::uint8_t, kSide>;

// Fp32, bf16 or fp16 from the n-th value on, as floats.
inline Floats floats(const void* values, Wire format, std::uint64_t n, std::uint32_t count) {
  if (format == Wire::fp32) return read(static_cast<const float*>(values) + n, count);
  const Halves halves = read(static_cast<const std::uint16_t*>(values) + n, count);
  Floats decoded;
  for (std::uint32_t i = 0; i < kSide; ++i)
    decoded.at[i] = format == Wire::bf16 ? from_bf16(halves.at[i]) : from_fp16(halves.at[i]);
  return decoded;
}

inline Halves encode(const Floats& x, Wire format) {
  Halves encoded;
  for (std::uint32_t i = 0; i < kSide; ++i)
    encoded.at[i] = format == Wire::bf16 ? to_bf16(x.at[i]) : to_fp16(x.at[i]);
  return encoded;
}

inline bool finite(const Halves& values, Wire format, std::uint32_t count) {
  bool all = true;
  for (std::uint32_t i = 0; i < kSide; ++i) {
    const std::uint16_t value = values.at[i];
    if (i < count) all &= format == Wire::bf16 ? finite_bf16(value) : finite_fp16(value);
  }
  return all;
}

inline bool finite(const Floats& values, std::uint32_t count) {
  std::uint32_t carry = 0;
  for (std::uint32_t i = 0; i < kSide; ++i) {
    if (i < count) carry |= full_exponent(values.at[i]);
  }
  return carry >> 31 == 0;
}

// The codes from the n-th on, a byte each. A byte holds two codes of int4, the first in its lower
// half.
inline Codes codes(const Sent& sent, std::uint64_t n, std::uint32_t count) {
  const auto* const bytes = static_cast<const std::uint8_t*>(sent.values) + bytes_of(sent.wire, n);
  if (sent.wire == Wire::int8) return read(bytes, count);
  const auto packed = read<kSide / 2>(bytes, (count + 1) / 2);
  Codes spread;
  for (std::uint32_t i = 0; i < kSide / 2; ++i) {
    spread.at[2 * i] = packed.at[i] & 15u;
    spread.at[2 * i + 1] = static_cast<std::uint8_t>(packed.at[i] >> 4);
  }
  return spread;
}

// The values that a thread works on at once.
struct Mine {
  std::uint64_t at;     // in the segment
  std::uint32_t count;  // 0 to kSide: the segment may end earlier
  Floats x, Wx;
  bool finite;  // the parameter and the values sent; not x itself
};

// Reads x. If a narrow parameter is not its master rounded, x is the parameter.
inline void load(const Parameters& p, Mine& my) {
  my.finite = true;
  if (p.format == Wire::fp32) {
    my.x = read(static_cast<const float*>(p.values) + my.at, my.count);
    return;
  }
  my.x = read(p.master + my.at, my.count);
  const Halves now = read(static_cast<const std::uint16_t*>(p.values) + my.at, my.count);
  const Halves rounded = encode(my.x, p.format);
  for (std::uint32_t i = 0; i < kSide; ++i) {
    if (now.at[i] != rounded.at[i])
      my.x.at[i] = p.format == Wire::bf16 ? from_bf16(now.at[i]) : from_fp16(now.at[i]);
  }
  my.finite = finite(now, p.format, my.count);
}

inline void store(const Parameters& p, bool moves, Mine& my) {
  if (p.format == Wire::fp32) {
    if (moves) write(my.x, static_cast<float*>(p.values) + my.at, my.count);
    return;
  }
  write(my.x, p.master + my.at, my.count);
  if (!moves) return;
  const Halves rounded = encode(my.x, p.format);
  write(rounded, static_cast<std::uint16_t*>(p.values) + my.at, my.count);
  my.finite = finite(rounded, p.format, my.count);
}

// A gradient and the rule's state.
template <class Rule>
struct Read {
  Floats g = {}, m = {}, v = {}, b = {};

  Read(const Segment<Rule>& s, const Mine& my) {
    if (s.g.values == nullptr) return;
    g = floats(s.g.values, s.x.format, my.at, my.count);
    if constexpr (Rule::kStates > 0) m = read(s.state.m + my.at, my.count);
    if constexpr (Rule::kStates > 1) v = read(s.state.v + my.at, my.count);
    if constexpr (Rule::kStates > 2) b = read(s.state.b + my.at, my.count);
  }
  // x <- rule(x, Wx, scale g)
  void adapt(const Segment<Rule>& s, Mine& my) {
    for (std::uint32_t i = 0; i < kSide; ++i) {
      const float x = my.x.at[i], Wx = my.Wx.at[i], scaled = s.g.scale * g.at[i];
      if constexpr (Rule::kStates == 0) my.x.at[i] = s.rule(x, Wx, scaled);
      if constexpr (Rule::kStates == 1) my.x.at[i] = s.rule(x, Wx, scaled, m.at[i]);
      if constexpr (Rule::kStates == 2) my.x.at[i] = s.rule(x, Wx, scaled, m.at[i], v.at[i]);
      if constexpr (Rule::kStates == 3) my.x.at[i] = s.rule(x, Wx, scaled, m.at[i], v.at[i], b.at[i]);
    }
    if constexpr (Rule::kStates > 0) write(m, s.state.m + my.at, my.count);
    if constexpr (Rule::kStates > 1) write(v, s.state.v + my.at, my.count);
    if constexpr (Rule::kStates > 2) write(b, s.state.b + my.at, my.count);
    if (s.g.cleared == nullptr) return;
    if (s.x.format == Wire::fp32) {
      write(Floats{}, static_cast<float*>(s.g.cleared) + my.at, my.count);
    } else {
      write(Halves{}, static_cast<std::uint16_t*>(s.g.cleared) + my.at, my.count);
    }
  }
};

inline void tell(const Mix& edge, const Measured& measured) {
  if (edge.measured == nullptr) return;
  if (measured.largest != 0) atomicMax(&edge.measured->largest, measured.largest);
  if (measured.sum != 0) atomicAdd(&edge.measured->sum, measured.sum);
}

// Measures the codes of a segment's first neighbours. Lane j of each warp keeps neighbour j's, so
// that there is one atomic addition per neighbour and warp. All lanes must call add() and finish()
// together.
class Lanes {
 public:
  void add(std::uint32_t j, const Mix& edge, Measured measured) {
    measured.largest = __reduce_max_sync(~0u, measured.largest);
    measured.sum = __reduce_add_sync(~0u, measured.sum);
    if (j % lanes() != lane()) return;
    if (j < lanes()) {
      measured_.add(measured);
    } else {
      tell(edge, measured);
    }
  }
  void finish(const Mix* mixes, std::uint32_t count) const {
    if (lane() < count) tell(mixes[lane()], measured_);
  }
  static std::uint32_t lane() { return threadIdx.x % lanes(); }

 private:
  static std::uint32_t lanes() { return static_cast<std::uint32_t>(warpSize); }
  Measured measured_;
};

// Mixes with neighbour j. Returns false, and mixes nothing, if the grids are too far apart.
inline bool mix(std::uint32_t j, const Mix& edge, Mine& my, Lanes& lanes) {
  if (!is_modular(edge.theirs.wire)) {
    const Floats theirs = floats(edge.theirs.values, edge.theirs.wire, my.at, my.count);
    const Floats ours = floats(edge.mine.values, edge.mine.wire, my.at, my.count);
    for (std::uint32_t i = 0; i < kSide; ++i)
      my.Wx.at[i] = mixed(my.Wx.at[i], edge.weight, theirs.at[i], ours.at[i]);
    return true;
  }
  const Pair pair(edge.theirs.wire, edge.theirs.exponent, edge.mine.exponent);
  if (!pair.mixes) return false;
  const float w = edge.weight * power_of_two(pair.exponent);
  const Codes theirs = codes(edge.theirs, my.at, my.count);
  const Codes ours = codes(edge.mine, my.at, my.count);
  Measured measured;
  for (std::uint32_t i = 0; i < kSide; ++i) {
    if (i >= my.count) continue;
    const std::int32_t D = pair.difference(theirs.at[i], ours.at[i]);
    my.Wx.at[i] = mixed(my.Wx.at[i], w, D);
    measured.add({D < 0 ? -D : D, static_cast<std::uint32_t>(D)});
  }
  lanes.add(j, edge, measured);
  return true;
}

// Writes the wire block and returns the sum of the grid points. A value sent may be infinite though
// x is finite.
inline std::uint32_t send(const WireBlock& outgoing, Mine& my) {
  if (outgoing.wire == Wire::fp32) {
    write(my.x, static_cast<float*>(outgoing.values) + my.at, my.count);
    return 0;
  }
  if (!is_modular(outgoing.wire)) {
    const Halves encoded = encode(my.x, outgoing.wire);
    write(encoded, static_cast<std::uint16_t*>(outgoing.values) + my.at, my.count);
    my.finite &= finite(encoded, outgoing.wire, my.count);
    return 0;
  }
  const float per_step = power_of_two(-outgoing.exponent);
  std::uint32_t sum = 0;
  Codes encoded = {};
  for (std::uint32_t i = 0; i < kSide; ++i) {
    if (i >= my.count) continue;
    const std::uint32_t k = grid_point(my.x.at[i] * per_step);
    sum += k;
    encoded.at[i] = static_cast<std::uint8_t>(k);
  }
  auto* const to = static_cast<std::uint8_t*>(outgoing.values) + bytes_of(outgoing.wire, my.at);
  if (outgoing.wire == Wire::int8) {
    write(encoded, to, my.count);
    return sum;
  }
  Side<std::uint8_t, kSide / 2> packed;
  for (std::uint32_t i = 0; i < kSide / 2; ++i)
    packed.at[i] = static_cast<std::uint8_t>((encoded.at[2 * i] & 15u) | encoded.at[2 * i + 1] << 4);
  write(packed, to, (my.count + 1) / 2);
  return sum;
}

// The segment of a block of threads: the last one that begins at this block or before it.
template <class Row>
const Row& segment_of(const Row* segments, std::uint32_t count, std::uint32_t block) {
  std::uint32_t first = 0, last = count - 1;
  while (first < last) {
    const std::uint32_t middle = last - (last - first) / 2;
    if (segments[middle].first_block <= block) {
      first = middle;
    } else {
      last = middle - 1;
    }
  }
  return segments[first];
}

// Sets *not_finite if a parameter, a master or a value sent is not finite. Otherwise leaves it
// unchanged.
template <class Rule>
void update(const Segment<Rule>* segments, std::uint32_t count, const Mix* all_mixes,
            std::uint32_t* not_finite) {
  const Segment<Rule> s = segment_of(segments, count, blockIdx.x);
  const Mix* const mixes = all_mixes + s.first_mix;
  Lanes lanes;
  bool all_finite = true;
  std::uint32_t sum = 0;
  for (std::uint32_t k = 0; k < kTimes; ++k) {
    Mine my;
    my.at =
        std::uint64_t{blockIdx.x - s.first_block} * kPerThreadBlock + (k * kThreads + threadIdx.x) * kSide;
    my.count = static_cast<std::uint32_t>(std::min(s.n - std::min(my.at, s.n), std::uint64_t{kSide}));
    load(s.x, my);
    Read<Rule> read(s, my);  // before the wait for the neighbours' values
    my.Wx = my.x;
    bool moves = s.g.values != nullptr;
    for (std::uint32_t j = 0; j < s.mixes; ++j) moves |= mix(j, mixes[j], my, lanes);
    if (s.g.values != nullptr) {
      read.adapt(s, my);
    } else {
      my.x = my.Wx;
    }
    store(s.x, moves, my);
    if (s.outgoing.values != nullptr) sum += send(s.outgoing, my);
    all_finite &= my.finite && finite(my.x, my.count);
  }
  lanes.finish(mixes, s.mixes);
  if (!all_finite) atomicOr(not_finite, 1u);
  if (s.outgoing.sum == nullptr) return;
  sum = __reduce_add_sync(~0u, sum);
  if (Lanes::lane() == 0 && sum != 0) atomicAdd(s.outgoing.sum, sum);
}

}  // namespace starling::kernels::cuda

// The host makes the tables (table.h): its compiler must lay them out as this one does.
#ifdef STARLING_TABLE_SIZES
namespace starling::kernels::cuda {
constexpr bool same_sizes() {
  constexpr std::size_t host[] = {STARLING_TABLE_SIZES};
  static_assert(sizeof host == sizeof kTableSizes);
  for (std::size_t i = 0; i < sizeof host / sizeof *host; ++i) {
    if (host[i] != kTableSizes[i]) return false;
  }
  return true;
}
static_assert(same_sizes(), "the host lays out its tables in another way");
}  // namespace starling::kernels::cuda
#endif

// The entries: one for each kind of step.
#define STARLING_ENTRY(name, rule)                                                                         \
  extern "C" __global__ void __launch_bounds__(starling::kernels::cuda::kThreads)                          \
      name(const starling::kernels::cuda::Segment<starling::kernels::rule>* segments, std::uint32_t count, \
           const starling::kernels::Mix* mixes, std::uint32_t* not_finite) {                               \
    starling::kernels::cuda::update(segments, count, mixes, not_finite);                                   \
  }
STARLING_EACH_STEP(STARLING_ENTRY)
#undef STARLING_ENTRY
