#include "starling/exchange/weight.h"

#include <array>

#include "starling/kernels/wire.h"

namespace starling {

void write_weight(double weight, Wire wire, std::byte* to) {
  double rest = weight < kLeastWeight ? 0 : weight;
  for (std::size_t k = 0; k < kWeightValues; ++k, to += bytes_of(wire, 1)) {
    const auto part = static_cast<float>(rest);
    kernels::encode(&part, 1, wire, to);
    float sent = 0;
    kernels::decode(to, wire, 1, &sent);
    rest -= sent;
  }
}

double weight_of(const SentBlock& sent, std::size_t values) {
  std::array<float, kWeightValues> parts{};
  kernels::decode(sent.values(values).values, sent.wire, parts.size(), parts.data());
  return double{parts[0]} + parts[1];
}

}  // namespace starling
