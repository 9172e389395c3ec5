// A block as it crosses an edge: the data that a worker writes to send, and the data that it
// receives to mix.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "starling/kernels/arguments.h"
#include "starling/kernels/mask.h"
#include "starling/kernels/modular.h"
#include "starling/transport/buffer.h"

namespace starling {

// A block that was sent. The trailer of modular codes is read once, here: the block may lie in
// another worker's memory.
struct SentBlock {
  SentBlock() = default;
  SentBlock(Payload block, Wire wire, Mask mask = {})
      : wire(wire), mask(mask), trailer(trailer_of(block.bytes, wire)), block(std::move(block)) {}
  std::span<const std::byte> bytes() const { return block.bytes; }
  // From value n of the block on. The mask chooses it; with int4 n is even.
  kernels::Sent values(std::size_t n = 0) const {
    return {block.bytes.data() + bytes_of(wire, mask.chosen_of(n)), wire, trailer.exponent};
  }
  // True if the kernel may read it, as far as that shows without its values: the grid exists, and
  // floats are aligned.
  bool may_be_read() const {
    const auto at = reinterpret_cast<std::uintptr_t>(block.bytes.data());
    return is_modular(wire) ? Grid::allows(trailer.exponent) : at % bytes_of(wire, 1) == 0;
  }
  Wire wire = Wire::fp32;
  Mask mask;  // which values of the block these are
  Trailer trailer;
  Payload block;
  bool on_device = false;  // it lies in a GPU's memory, where the parameters are, and not in the host's
};

// A neighbour's block to mix: x += weight * (theirs - mine), where the mask chooses. Both have the
// same mask. From a group: the mean of its blocks, with weight 1.
struct Arrival {
  int rank = 0;      // for a group its first member
  float weight = 0;  // 0: nothing was received
  SentBlock theirs{};
  SentBlock mine{};
  std::uint64_t round = 0;
  // With Exchanged::pushes: the share of mine that the neighbour has taken; below 0: it comes back.
  float given = 0;
  bool of_group = false;
};

// The memory for what is sent, and which values belong there.
struct Outgoing : kernels::WireBlock {
  using WireBlock::WireBlock;
  Outgoing(kernels::WireBlock block, Mask mask = {}) : WireBlock(block), mask(mask) {}
  Mask mask;
};

}  // namespace starling
