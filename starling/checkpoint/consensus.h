// The average model of a checkpoint, as one safetensors file that other programs read.
#pragma once

#include <string>

#include "starling/checkpoint/checkpoint.h"

namespace starling {

// A worker's file holds its model as "model.NAME", with the module's names. Writes each as NAME.
// Real numbers (F32, F64) are the average over all workers of the checkpoint, summed in double;
// integers (counters) are the maximum. Refused if workers count differently (scheme push-sum). The
// average of F16 and BF16 is written as F32; that of a parameter is the average of its fp32
// masters, "master.NAME". Verifies all files first. Throws Error, also if the workers' files do not
// fit each other.
void write_consensus(const Checkpoint& checkpoint, const std::string& out);

}  // namespace starling
