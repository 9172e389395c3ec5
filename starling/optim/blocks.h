// The parameters as the exchange sees them: cut into blocks, each a list of segments. Parameters
// and gradients stay in torch's memory, and their pointers are read again at every step. Only
// Starling's own memory (moments, masters, wire) is flat.
//
//   segment   a stretch of one parameter
//   block     the unit of exchange: segments of one parameter group, all on one device
//   master    x in fp32 of a parameter in bf16 or fp16; the parameter is the master rounded
//
// The rule, mixing and averages act on the master. It is 0 at first. A pass sets the master to the
// parameter's value if the parameter is not the master rounded (kernels/update.h), so the first
// pass does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/kernels/format.h"
#include "starling/kernels/modular.h"
#include "starling/kernels/update.h"
#include "starling/optim/cuda/cuda.h"

namespace torch::optim {
class OptimizerParamGroup;
}

namespace starling {

class Timeline;

// Says that a pass has written a segment's x, without a change, to a block that is sent. While
// nobody changes x, it can be read in place of the sent block. The parameter's version shows
// changes. This library's own passes over other segments do not count as changes.
struct AsSent {
  const void* block = nullptr;  // the block; null: there is none
  const void* x = nullptr;      // x's address
  std::uint32_t version = 0;    // Segment::version() then
};

struct Segment {
  at::Tensor parameter;
  at::Tensor layout{};       // on "meta": the sizes and strides that it must keep; undefined: any
  std::int64_t begin = 0;    // the segment's first element, in the parameter's memory order
  std::int64_t length = 0;   // elements
  std::int64_t offset = 0;   // in the block; even for int4, so that no two segments share a byte
  Wire format = Wire::fp32;  // type of the parameter and its gradient: fp32, bf16 or fp16
  at::Tensor master{};       // `length` floats on the parameter's device; undefined with fp32
  std::int64_t state = 0;    // offset in the block's states: a segment starts at a cache line
  std::int64_t steps = 0;    // so far, with a gradient
  bool whole = false;        // a matrix that the rule updates as one: all of the parameter
  bool cleared = false;      // the last pass cleared its gradient: Block::clears
  AsSent as_sent{};          // by the last pass
  std::shared_ptr<std::uint32_t> passes =
      // that have changed the parameter; shared by its segments
      std::make_shared<std::uint32_t>(0);

  // Throws UsageError if the parameter's type, sizes or memory order have changed.
  void check() const;
  // The same, and if there is a gradient that cannot be read.
  void check_gradient() const;
  // The parameter's memory. After check().
  kernels::Parameters values() const;
  // Tells autograd and the other segments that a pass changes x.
  void mark_changed();
  // Says that a pass writes the x at this address to this block without a change.
  void mark_sent(const void* x, const void* sent);
  // Returns the block that still has the x at this address without a change, or null.
  const void* still_in(const void* x) const;
  // The parameter's version, less its `passes`.
  std::uint32_t version() const;
  // This step's gradient in the parameter's memory order, or null. After check_gradient(). `keep`
  // owns the copy, if one is needed.
  const void* gradient(at::Tensor& keep) const;
  // The same, writable, and .grad itself. Makes .grad if there is none, or if its memory is not in
  // the parameter's order.
  void* mutable_gradient() const;
};

struct Block {
  int index = 0;  // in the exchange
  int group = 0;  // parameter group
  std::int64_t length = 0;
  std::int64_t state_length = 0;
  std::int64_t later_length = 0;  // of all states but the first, which whole matrices do not keep
  std::vector<Segment> segments{};
  at::Device device{at::kCPU};            // of the parameters and of the memory beside them
  std::shared_ptr<OnDevice> on_device{};  // on a GPU
  std::vector<at::Tensor> states{};       // made by keep()
  Grid grid{Wire::int8};                  // of modular codes that are sent
  Timeline* timeline = nullptr;           // records updates
  bool clears = false;                    // Options::clear_gradients

  // Makes `count` states for the rule that updates this block, of `state_length` and then
  // `later_length` floats, all zero.
  void keep(int count);
  // The segment's part of state k; undefined: it keeps none.
  at::Tensor state_of(const Segment& segment, std::size_t k) const;
};

// Throws UsageError if the parameter cannot be updated in place. The message names its group and
// index.
void check_parameter(const at::Tensor& parameter, std::size_t group, std::size_t index);

// Cuts the parameters of the groups from `first_group` on into blocks of at most max(256 KB,
// min(block_bytes, total / 8)) and appends them, without states. A larger parameter is spread over
// several blocks, but a matrix that its group's rule takes whole makes a larger block. So does
// every parameter of two or more dimensions with `undivided`. Throws as check_parameter(), and if a
// parameter occurs twice, or shares memory with another one.
void append_blocks(std::vector<Block>& blocks, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   std::size_t first_group, std::int64_t block_bytes, Wire wire = Wire::fp32,
                   bool undivided = false);

// Each parameter once, in the order of the blocks that hold their first elements.
std::vector<at::Tensor> parameters_of(const std::vector<Block>& blocks);

// For each of these parameters, the blocks that hold some of it.
std::vector<std::vector<std::size_t>> holders_of(const std::vector<Block>& blocks);

// Each parameter in bf16 or fp16 (its TensorImpl) with its segments. Changes of a parameter are
// copied to its master first.
using Masters = std::unordered_map<const void*, std::vector<Segment*>>;
Masters with_masters(std::span<Block> blocks);
// The values of a dense tensor from `begin` on, in memory order.
at::Tensor stretch(const at::Tensor& dense, std::int64_t begin, std::int64_t length);
// The masters of one parameter as a float tensor with the parameter's strides, and back.
at::Tensor joined_masters(const std::vector<Segment*>& segments);
void set_masters(const std::vector<Segment*>& segments, const at::Tensor& joined);

}  // namespace starling
