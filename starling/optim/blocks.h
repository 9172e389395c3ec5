// The parameters as the exchange sees them: cut into blocks, each a list of segments. Parameters and gradients stay
// where they lie, and their pointers are read anew at every step; flat are only what is ours (moments, masters, wire).
//
//   segment   a stretch of one parameter
//   block     what is exchanged at once: segments of one parameter group, all on one device
//   master    x in fp32 of a parameter in bf16 or fp16, which is the master rounded. Everything acts on the master: rule,
//             mixing, averages. 0 at first: the first pass over it takes the parameter's value, as every pass does where the
//             parameter is not the master rounded (kernels/update.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/exchange/exchange.h"
#include "starling/optim/cuda/cuda.h"
#include "starling/optim/rules.h"

namespace torch::optim {
class OptimizerParamGroup;
}

namespace starling {

class Timeline;

// A pass has written a segment's x as it is to a block that is sent: while nobody changes x, it can be read in place of what was
// sent. Changes are seen by the parameter's version, of which this library's own passes over other segments are not counted.
struct AsSent {
  const void* wire = nullptr;  // the block; null: there is none
  const void* x = nullptr;     // where x lay
  std::uint32_t version = 0;   // Segment::version() then
};

struct Segment {
  at::Tensor parameter;
  std::int64_t begin = 0;    // of the parameter's elements in memory order, where this segment starts
  std::int64_t length = 0;   // elements
  std::int64_t offset = 0;   // in the block; for int4 even, so that no two segments share a byte
  Wire format = Wire::fp32;  // of the parameter and its gradient: fp32, bf16 or fp16
  at::Tensor master{};       // `length` floats on the parameter's device; undefined with fp32
  std::int64_t state =
      0;  // offset in the block's states: each segment's begins with a cache line, as a parameter does
  std::int64_t steps = 0;  // with a gradient so far
  bool cleared = false;    // its gradient, by the last pass: Block::clears
  AsSent as_sent{};        // by the last pass
  std::shared_ptr<std::uint32_t> passes =
      std::make_shared<std::uint32_t>(0);  // that have changed the parameter, of all its segments

  // Throws UsageError where the parameter has come to be of another type.
  kernels::Parameters values() const;
  // A pass changes x: autograd and the other segments are told.
  void mark_changed();
  // A pass writes x, which lies there, to this block as it is.
  void mark_sent(const void* x, const void* wire);
  // The block that x, which lies there, is in as it is, or null.
  const void* still_in(const void* x) const;
  // Of the parameter, less its `passes`.
  std::uint32_t version() const;
  // This step's gradient in the parameter's memory order, or null. `keep` holds what had to be copied.
  const void* gradient(at::Tensor& keep) const;
  // The same to be written, in .grad itself: made where there is none, and where it lies in another order.
  void* mutable_gradient() const;
};

struct Block {
  int index = 0;  // in the exchange
  int group = 0;  // parameter group
  std::int64_t length = 0;
  std::int64_t state_length = 0;
  std::vector<Segment> segments{};
  at::Device device{at::kCPU};            // of the parameters, and of what is kept beside them
  std::shared_ptr<OnDevice> on_device{};  // where that is a GPU
  std::vector<at::Tensor> states{};       // what keep() has made
  Grid grid{Wire::int8};                  // of what is sent as modular codes
  Timeline* timeline = nullptr;           // where updates are recorded
  bool clears = false;                    // Options::clear_gradients

  // So many states, of the rule that updates this block, each of `state_length` floats and zero.
  void keep(int count);
};

// Throws UsageError, naming the parameter by its place, where it cannot be updated in place.
void check_parameter(const at::Tensor& parameter, std::size_t group, std::size_t index);

// Cuts the parameters of the groups from `first_group` on into blocks of at most max(256 KB, min(block_bytes, total / 8))
// and appends them, without states; a larger parameter is spread over several. Throws as check_parameter(), and where one is
// there twice.
void append_blocks(std::vector<Block>& blocks, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   std::size_t first_group, std::int64_t block_bytes, Wire wire = Wire::fp32);

// Each once, in the order in which the blocks hold their beginnings.
std::vector<at::Tensor> parameters_of(const std::vector<Block>& blocks);

// Of each of these: the blocks that hold some of it.
std::vector<std::vector<std::size_t>> holders_of(const std::vector<Block>& blocks);

// exchange.finish() and start() of this block. Torch's profiler shows them as starling::finish and starling::start, the two
// ends of an exchange, and update() as starling::update. finish() waits first for the start() that update_and_send() has left to
// the block's device.
std::span<const Arrival> finish(Exchange& exchange, const Block& block);
void start(Exchange& exchange, const Block& block, bool finite);

// One step of one block in one pass over its memory, by torch's intra-op threads: mix with what arrived (where an arrival has no
// `mine`, or the parameters are that still, with its difference to the parameters themselves), apply the rule,
// write the new parameters to `wire` ({}: nothing is sent). What a mask does not choose is neither mixed nor sent. Returns
// whether they are finite, and what is sent. The bits are the same for any number of threads. `scale` is what the gradients
// are multiplied by; none: the step is skipped, so that the block is mixed only.
// On a GPU the pass is put into torch's current stream; this waits for it where there is something to send, and else returns at once,
// true.
bool update(Block& block, const Rule& rule, std::span<const Arrival> arrived, Outgoing wire,
            std::optional<float> scale = 1);

// The same without a rule: mixes what arrived, and writes the parameters to `wire`.
bool mix(Block& block, std::span<const Arrival> arrived, const Outgoing& wire);

// The same to the exchange's wire(), and its start(): here, or for a block on a GPU when that has written what is sent, on the
// device's thread. Every other call for the exchange, but finish() of this block, must wait for that: settle().
void update_and_send(Exchange& exchange, Block& block, const Rule& rule, std::span<const Arrival> arrived,
                     std::optional<float> scale = 1);
void mix_and_send(Exchange& exchange, Block& block, std::span<const Arrival> arrived);
// Waits until all passes are over on GPUs, and what they send has been started. Throws Error where a GPU has failed.
void settle(std::span<const Block> blocks);

// Writes the parameters to `wire` and no more, as the last update() or mix() that wrote them did: modular codes on the same
// grid.
bool write_again(Block& block, Outgoing wire);
// The same as update_and_send().
void send_again(Exchange& exchange, Block& block);

// With Block::clears update() leaves zeros where it has read a gradient; this clears the others: of a step that was skipped, in
// another order than the parameter's, of a block that another worker updates.
void clear_other_gradients(std::span<Block> blocks);

// Of the parameters' own gradients in all blocks, in double, in one read of them; not finite where one of them is not.
// The bits are the same for any number of threads. On a GPU each gradient's are added up in fp32, and this waits for it.
double sum_of_squares(std::span<const Block> blocks);

// Each parameter in bf16 or fp16 (its TensorImpl) with its segments. What was changed in a parameter is in its master then.
using Masters = std::unordered_map<const void*, std::vector<Segment*>>;
Masters with_masters(std::span<Block> blocks);
// The values of a dense tensor from `begin` on, in memory order.
at::Tensor stretch(const at::Tensor& dense, std::int64_t begin, std::int64_t length);
// The masters of one parameter as a float tensor that lies as the parameter does, and back.
at::Tensor joined_masters(const std::vector<Segment*>& segments);
void set_masters(const std::vector<Segment*>& segments, const at::Tensor& joined);

}  // namespace starling
