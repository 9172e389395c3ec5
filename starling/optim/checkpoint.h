// Saving a run, and going on where it stood: all workers together, in one folder that all of them see.
//
//   starling::save_checkpoint(optimizer, "out/checkpoints", {.step = 15});                          // between two steps
//   starling::load_checkpoint(optimizer, starling::Checkpoint("out/checkpoints"));                  // the latest
//
// With as many workers as before, what follows is equal to the bit to not having stopped (but with asynchronous gossip, whose
// clocks are real). The files: checkpoint/.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "starling/checkpoint/checkpoint.h"
#include "starling/optim/optimizer.h"

namespace starling {

// Collective. `progress`: what the manifest is to say besides; its workers and files are filled in, and of its seconds
// the largest is taken. Returns whether it was written. Where it was not (a full disk) the reason goes to the World's
// Log, as one warning by one worker, the run can go on, and the checkpoints before are untouched. `mine`: the steps of this
// worker, where they are not progress.step.
bool save_checkpoint(Optimizer& optimizer, const std::string& root, const Manifest& progress, int keep = 2,
                     std::optional<std::int64_t> mine = {});

// Throws UsageError where the checkpoint is of another number of workers.
void check_workers(const Checkpoint& checkpoint, int workers);

// Collective. Throws Error on all workers, and changes nothing, where a worker's file is missing, damaged or of another
// optimizer; UsageError as check_workers().
void load_checkpoint(Optimizer& optimizer, const Checkpoint& checkpoint);

// By one worker alone: tensors as one safetensors file, synced, but not written in one go. Throws UsageError for a type
// that the format does not have, Error where it cannot be written.
Digest save_tensors(const std::string& file, const std::map<std::string, at::Tensor>& tensors,
                    const Metadata& metadata);

}  // namespace starling
