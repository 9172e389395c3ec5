// A vector that a scheme keeps beside the parameters: one float for each value of each block, on
// the block's device. It is mixed, added and sent by the same pass as the parameters. A scheme that
// computes on the host keeps it there (Where::host).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/schemes/scheme.h"

namespace starling {

// The parameters of the block, or their masters: one float for each value, on the block's device.
void read_parameters(Block& block, const at::Tensor& values);
void set_parameters(Block& block, const at::Tensor& values);
// The same with values in the host's memory. A block on a GPU is copied as copy_to_host() does.
void read_on_host(Block& block, const at::Tensor& values);
void set_from_host(Block& block, const at::Tensor& values);
// The values that the mask chooses, as views: whole runs, then the rest.
std::vector<at::Tensor> chosen(const at::Tensor& values, const Mask& mask);

// Room for a float of each value of the block in the host's memory: page-locked, for a block on a
// GPU.
at::Tensor room_on_host(const Block& block);

// A stretch of values on the block's device, float or narrow, and as many floats in the host's
// memory. Both are dense.
struct Moved {
  at::Tensor there, here;
};
// Copy all `there` to `here`, or back, in order with torch's work. For a block on a GPU they wait
// once for all.
void copy_to_host(const Block& block, std::span<const Moved> all);
void copy_from_host(const Block& block, std::span<const Moved> all);

// Zeros on the blocks' devices, as many as the longest block there has. They are made when they are
// first needed.
class Zeros {
 public:
  void attach(std::span<const Block> blocks);
  SentBlock of(const Block& block) const;

 private:
  struct Made {
    std::int64_t longest = 0;
    at::Tensor values;
  };
  mutable std::unordered_map<at::Device, Made> all_;
};

enum class Where { device, host };

class Vectors {
 public:
  // `fresh`: whether it begins at zero or at the parameters.
  explicit Vectors(Fresh fresh = Fresh::zero, Where where = Where::device) : fresh_(fresh), where_(where) {}

  // Those of new blocks begin. The others keep their values.
  void attach(std::span<Block> blocks);
  void zero();
  // As the state `name`.
  void state(StateVisitor& visitor, const std::string& name);

  const at::Tensor& of(const Block& block) const { return values_[static_cast<std::size_t>(block.index)]; }
  // v <- x, the parameters, or their masters.
  void copy(Block& block) const {
    where_ == Where::host ? read_on_host(block, of(block)) : read_parameters(block, of(block));
  }
  // v - x, which replaces v.
  const at::Tensor& less_parameters(const Block& block) const;
  // v <- v + Sum_j weight (theirs - mine), as mix() does it with the parameters.
  void mix(const Block& block, std::span<const Arrival> arrived) const;
  // The same with a vector that the block sends in place of the parameters. Grids follow it.
  void mix_sent(Block& block, std::span<const Arrival> arrived) const;
  // Writes v to `outgoing`. Then calls then(whether v is finite), as update() in pass.h does.
  void write(const Block& block, const Outgoing& outgoing, Then then) const;
  // Writes what the block has sent last: modular codes use the same grid. Waits for a GPU. Returns
  // whether v is finite.
  bool write_again(const Block& block, const Outgoing& outgoing) const;
  // To be mixed into the parameters: x <- x + weight v. Valid until v changes. Not with
  // Where::host.
  Arrival plus(const Block& block, float weight = 1) const;

 private:
  Vector vector(const Block& block, Grid* grid = nullptr) const;

  Fresh fresh_;
  Where where_;
  // By block.
  std::vector<at::Tensor> values_;
  std::vector<std::shared_ptr<OnDevice>> passes_;
  Zeros zeros_;
};

// The second vector of a wire block with two or more of this block's (exchange/contents.h): in a
// block that was sent, and where to write it. `block` is not of modular codes.
SentBlock second_vector(const SentBlock& all, const Block& block);
Outgoing second_vector(const Outgoing& all, const Block& block);

// update() of the block, which writes the parameters to `outgoing`; behind them goes v. Then calls
// then(whether both are finite).
void update_and_write(Block& block, const Rule& rule, std::span<const Arrival> arrived,
                      const Outgoing& outgoing, std::optional<float> scale, const Vectors& v, Then then);

}  // namespace starling
