// What a step works on, and the mixing of one element. update.h says what it does with them.
//
// This file is compiled for GPUs too, as format.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "starling/kernels/codes.h"
#include "starling/kernels/format.h"

namespace starling::kernels {

// Values as they went over the wire.
struct Sent {
  Sent(const float* values = nullptr) : values(values) {}
  Sent(const void* values, starling::Wire wire, int exponent = 0)
      : values(values), wire(wire), exponent(exponent) {}
  const void* values;
  starling::Wire wire = starling::Wire::fp32;
  int exponent = 0;  // of modular codes
};

// One neighbour j of worker i. Either both blocks are modular codes of the same wire or none is.
struct Mix {
  float weight = 0;              // W_ij
  Sent theirs;                   // q_j
  Sent mine;                     // q_i; or x itself (of bf16 and fp16 parameters the master)
  Measured* measured = nullptr;  // of modular codes: what is measured is added to it
};

// Parameters as they lie in memory.
struct Parameters {
  Parameters(float* values) : values(values) {}
  Parameters(void* values, starling::Wire format, float* master)
      : values(values), format(format), master(master) {}
  // Those from the n-th on.
  Parameters from(std::size_t n) const {
    return {static_cast<std::byte*>(values) + bytes_of(format, n), format,
            master == nullptr ? nullptr : master + n};
  }
  void* values;
  starling::Wire format = starling::Wire::fp32;  // or bf16, fp16
  float* master = nullptr;                       // not with fp32
};

// In the parameters' format. Null: no gradient in this step. Then it is mixed only: no weight decay, state untouched.
struct Gradient {
  Gradient(const void* values = nullptr, float scale = 1, void* cleared = nullptr)
      : values(values), scale(scale), cleared(cleared) {}
  const void* values;
  float scale;    // what clipping multiplies it by
  void* cleared;  // the values again, where the pass leaves zeros; null: they stay
};

// A rule's state beside the parameter, zero before the first step. Null where the rule has none: SGD takes m
// with momentum and nothing without, Adam m and v, Accumulated Adam all three (M, V, b).
struct RuleState {
  float* m = nullptr;
  float* v = nullptr;
  float* b = nullptr;
};

// Where to write what is sent. Null: nothing is.
struct WireBlock {
  WireBlock(float* values = nullptr, bool stream = false) : values(values), stream(stream) {}
  WireBlock(void* values, starling::Wire wire, bool stream = false)
      : values(values), wire(wire), stream(stream) {}
  void* values;
  starling::Wire wire = starling::Wire::fp32;
  bool stream;  // written past the caches: faster for a block that is larger than they are
  // Of modular codes: the grid, and where the sum of the grid points is added to (null: nowhere).
  int exponent = 0;
  std::uint32_t* sum = nullptr;
};

// Wx and what comes from one more neighbour.
inline float mixed(float Wx, float w, float theirs, float mine) { return Wx + w * (theirs - mine); }
// Of modular codes; w is W_ij delta.
inline float mixed(float Wx, float w, std::int32_t D) { return Wx + w * static_cast<float>(D); }

}  // namespace starling::kernels
