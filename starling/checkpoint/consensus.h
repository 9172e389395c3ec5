// The average model of a checkpoint, as one safetensors file that other programs read.
#pragma once

#include <string>

#include "starling/checkpoint/checkpoint.h"

namespace starling {

// A worker's file holds its model as "model.NAME", the names being the module's. Writes each as NAME: real numbers
// (F32, F64) are the average over all workers of the checkpoint, summed in double; whole numbers (counters) the
// largest. Where workers count differently (scheme push-sum) it is refused. The average of F16 and BF16 is written as
// F32; that of a parameter is the average of its fp32 masters, "master.NAME". Verifies all files first. Throws Error,
// also where the workers' files do not fit each other.
void write_consensus(const Checkpoint& checkpoint, const std::string& out);

}  // namespace starling
