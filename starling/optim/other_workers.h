// A checkpoint's state for another number of workers.
#pragma once

#include "starling/checkpoint/checkpoint.h"
#include "starling/optim/checkpoint.h"
#include "starling/optim/optimizer.h"

namespace starling {

// The state with which this worker goes on, as checkpoint.h describes it. By one worker alone.
// Throws Error if a file is missing or damaged, or if the files do not fit each other.
OptimizerState state_for(const Optimizer& optimizer, const Checkpoint& checkpoint, OtherWorkers how);

}  // namespace starling
