// A vector that a scheme keeps beside the parameters: one float for each value of each block, on
// the block's device. It is mixed and added by the same pass as the parameters, on the CPU.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/schemes/scheme.h"

namespace starling {

// The parameters of the block, or their masters: one float for each value.
void read_parameters(Block& block, const at::Tensor& values);
void set_parameters(Block& block, const at::Tensor& values);
// The values that the mask chooses, as views: whole runs, then the rest.
std::vector<at::Tensor> chosen(const at::Tensor& values, const Mask& mask);

class Vectors {
 public:
  // `fresh`: whether it begins at zero or at the parameters.
  explicit Vectors(Fresh fresh = Fresh::zero) : fresh_(fresh) {}

  // Those of new blocks begin. The others keep their values.
  void attach(std::span<Block> blocks);
  void zero();
  // As the state `name`.
  void state(StateVisitor& visitor, const std::string& name);

  const at::Tensor& of(const Block& block) const { return values_[static_cast<std::size_t>(block.index)]; }
  // v <- x, the parameters, or their masters.
  void copy(Block& block) const { read_parameters(block, of(block)); }
  // v - x, which replaces v.
  const at::Tensor& less_parameters(const Block& block) const;
  // v <- v + Sum_j weight (theirs - mine), as mix() does it with the parameters.
  void mix(const Block& block, std::span<const Arrival> arrived) const;
  // The same with a vector that the block sends in place of the parameters. Grids follow it.
  void mix_sent(Block& block, std::span<const Arrival> arrived) const;
  // Writes v to `outgoing`. Returns whether v is finite.
  bool write(const Block& block, const Outgoing& outgoing) const;
  // The same, if v is what the block has sent last: modular codes use the same grid.
  bool write_again(const Block& block, const Outgoing& outgoing) const;
  // To be mixed into the parameters: x <- x + weight v. Valid until v changes.
  Arrival plus(const Block& block, float weight = 1) const;

 private:
  Fresh fresh_;
  std::vector<at::Tensor> values_;  // by block
  std::vector<float> zeros_;        // as many as the largest block has
};

// The second vector of a wire block with two or more of this block's (exchange/contents.h): in a
// block that was sent, and where to write it. `block` is not of modular codes.
SentBlock second_vector(const SentBlock& all, const Block& block);
Outgoing second_vector(const Outgoing& all, const Block& block);

}  // namespace starling
