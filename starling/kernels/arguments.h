// The arguments of a step (update.h), and the mixing of one element. Like format.h, this file is
// compiled for GPUs too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/kernels/codes.h"
#include "starling/kernels/format.h"

namespace starling::kernels {

// Values as they crossed the link.
struct Sent {
  Sent(const float* values = nullptr) : values(values) {}
  Sent(const void* values, starling::Wire wire, int exponent = 0)
      : values(values), wire(wire), exponent(exponent) {}
  const void* values;
  starling::Wire wire = starling::Wire::fp32;
  int exponent = 0;  // for modular codes
};

// One neighbour j of worker i. Both blocks are modular codes of the same wire, or neither is.
struct Mix {
  float weight = 0;              // W_ij
  Sent theirs;                   // q_j
  Sent mine;                     // q_i; or x itself (for bf16 and fp16 parameters the master)
  Measured* measured = nullptr;  // for modular codes: the measurements are added to it
};

// Parameters in memory.
struct Parameters {
  Parameters(float* values) : values(values) {}
  Parameters(void* values, starling::Wire format, float* master)
      : values(values), format(format), master(master) {}
  // The parameters from the n-th on.
  Parameters from(std::size_t n) const {
    return {static_cast<std::byte*>(values) + bytes_of(format, n), format,
            master == nullptr ? nullptr : master + n};
  }
  void* values;
  starling::Wire format = starling::Wire::fp32;  // or bf16, fp16
  float* master = nullptr;                       // not with fp32
};

// In the parameters' format. Null: there is no gradient in this step. Then the parameters are mixed
// only, without weight decay, and the rule's state stays as it is.
struct Gradient {
  Gradient(const void* values = nullptr, float scale = 1, void* cleared = nullptr)
      : values(values), scale(scale), cleared(cleared) {}
  const void* values;
  float scale;    // clipping multiplies the gradient by it
  void* cleared;  // the values again: the pass leaves zeros there; null: they stay
};

// A rule's state beside the parameter, zero before the first step. A step with kStates = 0, 1, 2 or
// 3 takes that many of them, in this order, and ignores the rest.
struct RuleState {
  float* m = nullptr;
  float* v = nullptr;
  float* b = nullptr;
};

// Destination of the values to send. Null: none are sent.
struct WireBlock {
  WireBlock(float* values = nullptr, bool stream = false) : values(values), stream(stream) {}
  WireBlock(void* values, starling::Wire wire, bool stream = false)
      : values(values), wire(wire), stream(stream) {}
  void* values;
  starling::Wire wire = starling::Wire::fp32;
  bool stream;  // write past the caches: faster for a block that is larger than they are
  // For modular codes: the grid, and the sum that the grid points are added to (null: none).
  int exponent = 0;
  std::uint32_t* sum = nullptr;
};

// Adds one more neighbour's part to Wx.
inline float mixed(float Wx, float w, float theirs, float mine) { return Wx + w * (theirs - mine); }
// The same for modular codes; w is W_ij delta.
inline float mixed(float Wx, float w, std::int32_t D) { return Wx + w * static_cast<float>(D); }

}  // namespace starling::kernels
