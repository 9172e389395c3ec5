// The messages of a scheme, by its row in the table (schemes/scheme.h). The exchange is made with
// these answers. The planner, the chooser and the command ask the same functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <ATen/core/Tensor.h>

#include "starling/exchange/contents.h"
#include "starling/optim/blocks.h"
#include "starling/optim/optimizer_options.h"
#include "starling/topology/graph.h"

namespace starling {

// The contents of each round, or of each averaging in pairs.
Contents contents_of(const Options& options);
// The values of each vector of the block's wire block, before a mask or top-k chooses of them. The
// schedule is that of the members alone.
std::size_t values_of(const Block& block, const Schedule& schedule, const Options& options);
// Steps of a worker from one exchange to the next.
int steps_between_exchanges(const Options& options);
// Whether the bytes depend on the shapes of the parameters, and not on their number alone.
bool depends_on_shapes(const Options& options);

// Bytes of a block that a worker sends in an exchange, in the mean over the rounds.
struct SentSize {
  double block = 0;  // to each neighbour
  double mean = 0;   // the mean of a group
};
SentSize sent_size(const Block& block, const Schedule& schedule, const Options& options);

// These parameters as one block, for sent_size() alone. They may be on torch's meta device.
Block as_one_block(std::span<const at::Tensor> parameters);
// For a model whose shapes are not known: a square matrix.
inline constexpr std::int64_t kTypicalSide = 1024;
Block typical_block();

}  // namespace starling
