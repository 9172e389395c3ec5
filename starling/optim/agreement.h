// All workers want the same, begin with the same numbers, and fail together.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/transport/c10d/collectives.h"
#include "starling/world/world.h"

namespace starling {

class Optimizer;

// What must be equal on all workers, in the order in which a difference is best reported: {"topology", "base-2"}.
using Terms = std::vector<std::pair<std::string, std::string>>;

// Throws UsageError on ALL workers where they differ, with the first term that does, both values and both ranks.
void agree(Collectives& collectives, const World& world, const Terms& mine);

// Rank 0's values reach every worker; a checksum over all of them proves it. Throws Error where it does not hold.
void make_equal(Collectives& collectives, const World& world, const std::vector<at::Tensor>& tensors);

// Collective, over the edges: every worker does its own; if it throws Error on one, all throw: that one its own, the
// others one that names it ("worker 2 could not <what>").
void together(Optimizer& optimizer, const std::string& what, const std::function<void()>& own);

}  // namespace starling
