#include "starling/optim/checkpoint.h"

#include <iterator>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/input.h"
#include "starling/optim/agreement.h"
#include "starling/optim/checkpoint_writer.h"
#include "starling/optim/other_workers.h"

namespace starling {
bool save_checkpoint(Optimizer& optimizer, const std::string& root, const Manifest& progress, int keep,
                     std::optional<std::int64_t> mine) {
  const Operation operation(optimizer);
  CheckpointWriter writer(optimizer, root, keep);
  return writer.save(progress, mine) && writer.finish();
}

bool fits_workers(const Manifest& checkpoint, int workers) {
  return checkpoint.workers == workers && std::ssize(checkpoint.files) == workers;
}

void check_workers(const Checkpoint& checkpoint, int workers, OtherWorkers how) {
  if (checkpoint.manifest().workers == workers || how != OtherWorkers::refuse) return;
  throw UsageError(
      fmt::format("{} is of {} workers, this run has {}: the number must be the same, or checkpoint.workers "
                  "must be copy or average",
                  checkpoint.folder(), checkpoint.manifest().workers, workers));
}

void load_checkpoint(Optimizer& optimizer, const Checkpoint& checkpoint, OtherWorkers how) {
  const World& world = optimizer.world();
  check_workers(checkpoint, world.size, how);
  const char* const what = "read its part of the checkpoint";
  if (how == OtherWorkers::refuse || fits_workers(checkpoint.manifest(), world.size)) {
    std::string file;
    together(optimizer, what, [&] { file = named_input([&] { return checkpoint.verified(world.rank); }); });
    return optimizer.load(file);
  }
  OptimizerState state;
  together(optimizer, what,
           [&] { state = named_input([&] { return state_for(optimizer, checkpoint, how); }); });
  try {
    optimizer.set_state(state);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", checkpoint.folder(), error.what()));
  }
}

}  // namespace starling
