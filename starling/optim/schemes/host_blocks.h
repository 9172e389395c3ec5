// The parameters of blocks in the host's memory, for schemes whose algorithm works there. A block
// on the CPU is itself. One on a GPU has a copy: a block of fp32 values in page-locked memory, in
// segments of the same lengths.
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/blocks.h"

namespace starling {

class HostBlocks {
 public:
  // Makes the copies of new blocks, without values.
  void attach(std::span<const Block> blocks);
  // The block's parameters, or their masters. Waits for a GPU, which has 4 bytes per value to copy.
  Block& read(Block& block);
  // The same without reading again.
  Block& of(Block& block) { return block.on_device ? copies_[static_cast<std::size_t>(block.index)] : block; }
  const Block& of(const Block& block) const {
    return block.on_device ? copies_[static_cast<std::size_t>(block.index)] : block;
  }
  // Sets the parameters to the changed copy.
  void write(Block& block) const;

 private:
  // By block; empty, if it is on the CPU.
  std::vector<at::Tensor> values_;
  std::vector<Block> copies_;
};

}  // namespace starling
