#include "starling/kernels/wire.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {
namespace {

constexpr std::array<std::string_view, 5> kNames{"fp32", "bf16", "fp16", "int8",
                                                 "int4"};  // in the order of the values

}  // namespace

std::string_view name_of(Wire wire) { return kNames[static_cast<std::size_t>(wire)]; }

Wire wire_named(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Wire>(i);
  }
  throw UsageError(fmt::format("there is no wire \"{}\"{}; there are {}", name,
                               did_you_mean(std::string(name), {kNames.begin(), kNames.end()}),
                               fmt::join(kNames, ", ")));
}

namespace kernels {

void decode(const void* values, Wire format, std::size_t n, float* to) {
  if (format == Wire::fp32) {
    std::copy_n(static_cast<const float*>(values), n, to);
    return;
  }
  const auto* const halves = static_cast<const std::uint16_t*>(values);
  if (format == Wire::bf16) {
    for (std::size_t i = 0; i < n; ++i) to[i] = from_bf16(halves[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) to[i] = from_fp16(halves[i]);
  }
}

void encode(const float* values, std::size_t n, Wire format, void* to) {
  if (format == Wire::fp32) {
    std::copy_n(values, n, static_cast<float*>(to));
    return;
  }
  auto* const halves = static_cast<std::uint16_t*>(to);
  if (format == Wire::bf16) {
    for (std::size_t i = 0; i < n; ++i) halves[i] = to_bf16(values[i]);
  } else {
    for (std::size_t i = 0; i < n; ++i) halves[i] = to_fp16(values[i]);
  }
}

}  // namespace kernels
}  // namespace starling
