// A pass over a block's memory does the mixing, the rule and the sending in one. Here are also the
// two ends of the block's exchange, and its gradients.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/rules.h"

namespace starling {

// exchange.finish() and exchange.start() of this block. Torch's profiler shows them as
// starling::finish and starling::start, the two ends of an exchange, and update() as
// starling::update. finish() first waits for the passes of the block on a GPU, whose `then` may be
// that start().
std::span<const Arrival> finish(Exchange& exchange, const Block& block);
void start(Exchange& exchange, const Block& block, bool finite);

// One step of one block in one pass over its memory, by torch's intra-op threads. The pass mixes
// the arrivals, applies the rule and writes the new parameters to `outgoing` ({}: sends nothing).
// An arrival without `mine`, or one whose `mine` still equals the parameters, is mixed by its
// difference to the parameters. Values that a mask does not choose are neither mixed nor sent.
// Returns whether the parameters, and the values sent, are finite. The bits do not depend on the
// number of threads.
//
// `scale`: a factor of the gradients. None: the step is skipped, and the block is mixed only. On a
// GPU the pass goes into torch's current stream. The call waits for it if there is something to
// send; otherwise it returns true at once.
bool update(Block& block, const Rule& rule, std::span<const Arrival> arrived, Outgoing outgoing,
            std::optional<float> scale = 1);

// The same without a rule: mixes the arrivals, and writes the parameters to `outgoing`.
bool mix(Block& block, std::span<const Arrival> arrived, const Outgoing& outgoing);

// The same as update(), but calls then(finite) when it is over. On the CPU that is at once. On a
// GPU the call does not wait: the device's thread calls `then`, in the order of these calls. So
// `then` must own what it uses, or use what lives until settle().
using Then = std::function<void(bool finite)>;
void update(Block& block, const Rule& rule, std::span<const Arrival> arrived, Outgoing outgoing,
            std::optional<float> scale, Then then);
// Start() of the exchange, once the block is written.
Then then_start(Exchange& exchange, const Block& block);

// Throws UsageError if a pass of this rule over the block would be refused: a parameter or its
// gradient is no longer what the block was made for. No rule: another optimizer reads the gradient.
// A step calls it for all blocks before it sends the first one. Passes with a `scale` rely on it.
void check_pass(const Block& block, const Rule* rule);

// A vector beside the parameters: a float for each value of the block, on its device or in the
// host's memory.
struct Vector {
  const at::Tensor& values;
  const std::shared_ptr<OnDevice>& passes;  // on a GPU: block.on_device->beside(). Null: on the host
  Grid* grid = nullptr;                     // of modular codes, which follows what is mixed; null: none does
};
// v <- v + Sum_j weight (theirs - mine), as mix() does it with the parameters. Then v goes to
// `outgoing`. With `then` as above.
bool mix(const Vector& v, std::span<const Arrival> arrived, const Outgoing& outgoing);
void mix(const Vector& v, std::span<const Arrival> arrived, const Outgoing& outgoing, Then then);

// The arrivals in the memory of the block's device, if several passes are to mix them: they go
// there once. Valid until the next call for the block. On the CPU they are what they were.
std::vector<Arrival> uploaded(const Block& block, std::span<const Arrival> arrived);

// update() with the exchange's outgoing(), followed by its start(). For a block on a GPU, the
// device's thread calls start() when the GPU has written the wire block. Before every other call of
// the exchange, except finish(), outgoing() and round(), call settle().
void update_and_send(Exchange& exchange, Block& block, const Rule& rule, std::span<const Arrival> arrived,
                     std::optional<float> scale = 1);
void mix_and_send(Exchange& exchange, Block& block, std::span<const Arrival> arrived);
// Waits until all passes on GPUs are over, and their start() was called. Throws Error if a GPU has
// failed.
void settle(std::span<const Block> blocks);

// For modular codes, the same with the grid of what the block has sent last.
Outgoing on_last_grid(const Block& block, Outgoing outgoing);
// Only writes the parameters to `outgoing`, as the last update() or mix() that sent did: modular
// codes use the same grid.
bool write_again(Block& block, const Outgoing& outgoing);
// The same, with the exchange's outgoing() and start(), as update_and_send().
void send_again(Exchange& exchange, Block& block);

// With Block::clears, update() writes zeros to the gradients that it has read. This clears the
// other gradients: those of a skipped step, in another memory order than the parameter's, or of a
// block that another worker updates.
void clear_other_gradients(std::span<Block> blocks);

// Sum over the parameters' own gradients in all blocks, in double, in one read. Not finite if one
// gradient is not. The bits do not depend on the number of threads. On a GPU the sum over each
// segment is in fp32, and the call waits for the GPU.
double sum_of_squares(std::span<const Block> blocks);

}  // namespace starling
