#include "starling/optim/checkpoint.h"

#include <cmath>
#include <filesystem>
#include <iterator>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/agreement.h"
#include "starling/optim/other_workers.h"

namespace starling {
namespace {

// Each worker fills its own slots; the maximum over all workers gives every worker all of them.
enum Slot : std::size_t { kWritten, kFailed, kBytes, kChecksum, kStep, kSlots };

}  // namespace

bool save_checkpoint(Optimizer& optimizer, const std::string& root, const Manifest& progress, int keep,
                     std::optional<std::int64_t> mine) {
  const World& world = optimizer.world();
  const auto rank = static_cast<std::size_t>(world.rank);
  const auto size = static_cast<std::size_t>(world.size);
  std::string reason;
  std::vector<std::int64_t> slots(size * kSlots + 1);
  slots.back() = std::llround(progress.seconds * 1e6);
  const Operation operation(optimizer);
  optimizer.wait_for_all();
  try {
    const auto file = std::filesystem::path(draft_checkpoint(root, progress.step)) / worker_file(world.rank);
    const Digest digest = optimizer.save(file);
    slots[rank * kSlots + kWritten] = 1;
    slots[rank * kSlots + kBytes] = static_cast<std::int64_t>(digest.bytes);
    slots[rank * kSlots + kChecksum] = digest.crc32c;
    slots[rank * kSlots + kStep] = mine.value_or(progress.step);
  } catch (const Error& error) {
    slots[rank * kSlots + kFailed] = 1;
    reason = error.what();
  }
  if (optimizer.maximum(slots) == 0) {  // the folder is the others'
    world.log(Level::warning, fmt::format("no checkpoint of step {} here: the other workers went on without "
                                          "this one while it was away",
                                          progress.step));
    return false;
  }

  Manifest manifest = progress;
  manifest.workers = world.size;
  manifest.seconds = static_cast<double>(slots.back()) / 1e6;
  manifest.files.clear();
  int first_failed = world.size, first = world.size;  // ranks
  for (int r = world.size - 1; r >= 0; --r) {
    const std::int64_t* const theirs = &slots[static_cast<std::size_t>(r) * kSlots];
    if (theirs[kFailed] != 0) first_failed = r;
    if (theirs[kFailed] + theirs[kWritten] != 0) first = r;
    if (theirs[kWritten] == 0) continue;
    manifest.files.insert(manifest.files.begin(), {.worker = r,
                                                   .digest = {static_cast<std::uint64_t>(theirs[kBytes]),
                                                              static_cast<std::uint32_t>(theirs[kChecksum])},
                                                   .step = theirs[kStep]});
  }
  std::int64_t committed = 0;
  if (first_failed == world.size && first == world.rank) {
    try {
      commit_checkpoint(root, manifest, keep);
      committed = 1;
    } catch (const Error& error) {
      reason = error.what();
      first_failed = world.rank;
    }
  }
  if (!reason.empty() && first_failed == world.rank) {
    world.log(Level::warning, fmt::format("no checkpoint of step {}, the ones before it are kept: {}",
                                          progress.step, reason));
  }
  if (committed == 0 && first == world.rank) drop_checkpoint(root, progress.step);
  optimizer.maximum({&committed, 1});  // nobody begins the next one earlier
  return committed != 0;
}

bool fits_workers(const Checkpoint& checkpoint, int workers) {
  const Manifest& manifest = checkpoint.manifest();
  return manifest.workers == workers && std::ssize(manifest.files) == workers;
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
  if (how == OtherWorkers::refuse || fits_workers(checkpoint, world.size)) {
    std::string file;
    together(optimizer, what, [&] { file = checkpoint.verified(world.rank); });
    return optimizer.load(file);
  }
  OptimizerState state;
  together(optimizer, what, [&] { state = state_for(optimizer, checkpoint, how); });
  try {
    optimizer.set_state(state);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", checkpoint.folder(), error.what()));
  }
}

}  // namespace starling
