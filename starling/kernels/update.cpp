#include "starling/kernels/update.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

namespace starling::kernels {
namespace {

// So many floats are mixed on the stack before the rule sees them: further neighbours then cost no further
// pass over memory, and the chunk of every array stays in the first-level cache meanwhile.
constexpr std::size_t kChunk = 512;

// Wx[i] <- x[i] + Sum_j W_ij (q_j[i] - q_i[i]),  for i in [at, at + n)
void mix(std::span<const Mix> mixes, const float* x, std::size_t at, std::size_t n, float* __restrict Wx) {
  std::memcpy(Wx, x + at, n * sizeof(float));
  for (const Mix& edge : mixes) {
    const float w = edge.weight;
    const float* theirs = edge.theirs + at;
    const float* mine = edge.mine + at;
    for (std::size_t i = 0; i < n; ++i) Wx[i] += w * (theirs[i] - mine[i]);
  }
}

// out[i] <- rule(x[i], out[i], g[i]),  where out holds Wx
template <class Rule>
void adapt(const Rule& rule, const float* __restrict x, const float* __restrict g, const RuleState& state,
           std::size_t at, std::size_t n, float* __restrict out) {
  const Rule step = rule;  // a copy on the stack, which no store to memory can change
  x += at;
  g += at;
  if constexpr (Rule::kStates == 0) {
    for (std::size_t i = 0; i < n; ++i) out[i] = step(x[i], out[i], g[i]);
  } else if constexpr (Rule::kStates == 1) {
    float* __restrict m = state.m + at;
    for (std::size_t i = 0; i < n; ++i) out[i] = step(x[i], out[i], g[i], m[i]);
  } else if constexpr (Rule::kStates == 2) {
    float* __restrict m = state.m + at;
    float* __restrict v = state.v + at;
    for (std::size_t i = 0; i < n; ++i) out[i] = step(x[i], out[i], g[i], m[i], v[i]);
  } else {
    float* __restrict m = state.m + at;
    float* __restrict v = state.v + at;
    float* __restrict b = state.b + at;
    for (std::size_t i = 0; i < n; ++i) out[i] = step(x[i], out[i], g[i], m[i], v[i], b[i]);
  }
}

// Infinities and NaNs have all exponent bits set: adding one to the exponent then carries into the sign bit.
bool all_finite(const float* values, std::size_t n) {
  std::uint32_t carry = 0;
  for (std::size_t i = 0; i < n; ++i)
    carry |= (std::bit_cast<std::uint32_t>(values[i]) & 0x7f800000u) + 0x00800000u;
  return (carry >> 31) == 0;
}

template <class Rule>
bool update_all(const Rule& rule, std::span<const Mix> mixes, float* x, const float* g,
                const RuleState& state, float* wire, std::size_t n) {
  alignas(64) float chunk[kChunk];
  bool finite = true;
  for (std::size_t at = 0; at < n; at += kChunk) {
    const std::size_t count = std::min(kChunk, n - at);
    mix(mixes, x, at, count, chunk);
    if (g) adapt(rule, x, g, state, at, count, chunk);
    finite &= all_finite(chunk, count);
    std::memcpy(x + at, chunk, count * sizeof(float));
    if (wire) std::memcpy(wire + at, chunk, count * sizeof(float));
  }
  return finite;
}

}  // namespace

bool update(const Step& step, std::span<const Mix> mixes, float* x, const float* g, RuleState state,
            float* wire, std::size_t n) {
  return std::visit([&](const auto& rule) { return update_all(rule, mixes, x, g, state, wire, n); }, step);
}

}  // namespace starling::kernels
