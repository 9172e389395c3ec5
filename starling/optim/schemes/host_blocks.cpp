#include "starling/optim/schemes/host_blocks.h"

#include "starling/optim/schemes/vectors.h"

namespace starling {

void HostBlocks::attach(std::span<const Block> blocks) {
  for (std::size_t b = copies_.size(); b < blocks.size(); ++b) {
    const Block& block = blocks[b];
    Block& copy = copies_.emplace_back();
    at::Tensor& values = values_.emplace_back();
    if (!block.on_device) continue;
    copy = {.index = block.index, .group = block.group, .length = block.length};
    values = room_on_host(block);
    for (const Segment& s : block.segments)
      copy.segments.push_back(
          {.parameter = values.narrow(0, s.offset, s.length), .length = s.length, .offset = s.offset});
  }
}

Block& HostBlocks::read(Block& block) {
  if (block.on_device) read_on_host(block, values_[static_cast<std::size_t>(block.index)]);
  return of(block);
}

void HostBlocks::write(Block& block) const {
  if (block.on_device) set_from_host(block, values_[static_cast<std::size_t>(block.index)]);
}

}  // namespace starling
