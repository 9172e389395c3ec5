// Saving a run, and resuming it: all workers together, in one folder that all of them see.
//
//   save_checkpoint(optimizer, "out/checkpoints", {.step = 15});           // between two steps
//   load_checkpoint(optimizer, starling::Checkpoint("out/checkpoints"));   // the latest
//
// With as many workers as before, a resumed run is bit-equal to one that never stopped.
// Asynchronous gossip is the exception, since its clocks are real. checkpoint/ describes the files.
//
// With more or fewer workers than files, the caller chooses a rule:
//
//   copy      worker r takes the file r mod n of the n files, or the next one with a finite model
//   average   every worker takes the average of all files: parameters, masters, buffers, the rule's
//             moments and accumulators, moving averages. Integers are the maximum, and so are the
//             steps, by which an accumulator knows its place in the window. Options and the loss
//             scale are those of the first file. A worker whose model is not finite is left
//             out; one with another tensor that is not, out of that one
//
// With both rules the scheme, an outer optimizer with its warm-up, the place in the schedule and
// the grids of int8 and int4 begin anew, as in Optimizer::restart(), and torch's random numbers
// stay those of this process.
//
// A worker's file has the tensors and metadata of Optimizer::state():
//
//   model.NAME     the module's parameters and buffers; without a module, those of the groups as
//                  model.GROUP.INDEX
//   master.NAME    the fp32 master of a parameter in bfloat16 or float16
//   m. v. b.NAME   the rule's state, named as in kernels/update.h; exp_avg.NAME and so on around
//                  torch's optimizers
//   the scheme's   named by OptimizerState::of_scheme, described in the scheme's file; with them
//                  the outer optimizer's (outer.h)
//   the caller's   of Optimizer::add_to_state(), such as ema.NAME
//   loss_scale     with loss scaling: the scale, and the finite steps since it last changed
//   steps          per parameter, in the groups' order: steps with a gradient
//   options.GROUP  the group's rule options, the learning rate first
//   rng            torch's random numbers on the CPU
//
// The metadata has the place in the schedule, and with int8 and int4 the grids of the blocks. A
// state of another wire or other block sizes sets the grids anew. Grids of asynchronous schemes,
// one for each edge, stay as they are.
//
// With a hierarchy, m., v. and b. have only the values that this worker keeps, in memory order. If
// it keeps none, there is no such tensor. steps counts only for these. Such a state fits only the
// same share of the same hierarchy.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include "starling/checkpoint/checkpoint.h"
#include "starling/optim/optimizer.h"

namespace starling {

// Collective. `progress` is written to the manifest. This call fills in its workers and files, and
// takes the largest of the workers' seconds. Returns whether the checkpoint was written. If it was
// not (a full disk), one worker writes the reason to the World's Log as a warning. The run can then
// continue, and the earlier checkpoints are untouched. `mine`: this worker's steps, if they differ
// from progress.step.
bool save_checkpoint(Optimizer& optimizer, const std::string& root, const Manifest& progress, int keep = 2,
                     std::optional<std::int64_t> mine = {});

enum class OtherWorkers { refuse, copy, average };

// Whether the checkpoint has the file of each of so many workers, and no other file.
bool fits_workers(const Manifest& checkpoint, int workers);
// Throws UsageError if the run was of another number of workers, and these are refused.
void check_workers(const Checkpoint& checkpoint, int workers, OtherWorkers how = OtherWorkers::refuse);

// Collective. If a worker's file is missing, damaged or of another optimizer, throws UsageError on
// that worker and Error on the others, and changes nothing. Throws UsageError as check_workers().
// `how`: if !fits_workers().
void load_checkpoint(Optimizer& optimizer, const Checkpoint& checkpoint,
                     OtherWorkers how = OtherWorkers::refuse);

// By one worker alone: writes tensors to one safetensors file and syncs it. The write is not
// atomic. Throws UsageError for a type that the format does not have, Error if the file cannot be
// written.
Digest save_tensors(const std::string& file, const std::map<std::string, at::Tensor>& tensors,
                    const Metadata& metadata);

}  // namespace starling
