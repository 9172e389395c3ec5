// A pass over a block's memory does the mixing, the rule and the sending in one. Here are also the
// two ends of the block's exchange, and its gradients.
#pragma once

#include <optional>
#include <span>

#include "starling/exchange/exchange.h"
#include "starling/optim/blocks.h"
#include "starling/optim/rules.h"

namespace starling {

// exchange.finish() and exchange.start() of this block. Torch's profiler shows them as
// starling::finish and starling::start, the two ends of an exchange, and update() as
// starling::update. finish() first waits for a start() that update_and_send() has left to the
// block's device.
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

// The same with the exchange's outgoing(), followed by its start(). For a block on a GPU, the
// device's thread calls start() when the GPU has written the wire block. Before every other call of
// the exchange, except finish() of this block, call settle().
void update_and_send(Exchange& exchange, Block& block, const Rule& rule, std::span<const Arrival> arrived,
                     std::optional<float> scale = 1);
void mix_and_send(Exchange& exchange, Block& block, std::span<const Arrival> arrived);
// Waits until all passes on GPUs are over, and their start() was called. Throws Error if a GPU has
// failed.
void settle(std::span<const Block> blocks);

// Only writes the parameters to `outgoing`, as the last update() or mix() that sent did: modular
// codes use the same grid.
bool write_again(Block& block, Outgoing outgoing);
// The same, with the exchange's outgoing() and start(), as update_and_send().
void send_again(Exchange& exchange, Block& block);

// With Block::clears, update() writes zeros to the gradients that it has read. This clears the
// other gradients: those of a skipped step, in another memory order than the parameter's, or of a
// block that another worker updates.
void clear_other_gradients(std::span<Block> blocks);

// Sum over the parameters' own gradients in all blocks, in double, in one read. Not finite if one
// gradient is not. The bits do not depend on the number of threads. On a GPU the sum over each
// gradient is in fp32, and the call waits for the GPU.
double sum_of_squares(std::span<const Block> blocks);

}  // namespace starling
