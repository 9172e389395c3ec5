// Checkpoints that are written while the run goes on.
//
//   CheckpointWriter checkpoints(optimizer, "out/checkpoints");
//   checkpoints.save({.step = 15});   // between two steps, every so often
//   checkpoints.finish();             // at the end
//
// save() copies the state, and a thread of this worker writes it. Beside its file, in the folder
// step-N.tmp, a worker leaves a note that says its size and checksum: a manifest of this one file
// (checkpoint/manifest.h). The worker of the lowest rank that took part has another thread, which
// waits for the notes, and then commits as checkpoint/checkpoint.h describes. So no step waits for
// a disk, and no worker for another one's disk.
//
// A checkpoint that is due before this worker's last one is written waits for it, with a warning
// from a second on, and a line now and then while a disk hangs. Whatever goes wrong on a disk, or
// no memory for a copy, costs that checkpoint, with a warning. So does the end of the worker that
// commits. If another worker ends before its file is whole, the checkpoint is committed without it
// when the next one is due, also if the worker was started again meanwhile. A worker that does not
// count (Optimizer::counts()) writes no file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "starling/checkpoint/manifest.h"
#include "starling/optim/optimizer.h"

namespace starling {

class CheckpointWriter {
 public:
  // The newest `keep` checkpoints stay. The optimizer must outlive this object.
  CheckpointWriter(Optimizer& optimizer, std::string root, int keep = 2);
  // Waits until this worker's file is written, and a second for those of the others.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Collective, as save_checkpoint(). Returns whether this worker takes part: not if the others
  // went on without it while it was away.
  bool save(const Manifest& progress, std::optional<std::int64_t> mine = {});
  // Collective: waits until the last checkpoint is committed. Returns whether it was.
  bool finish();

 private:
  struct Attempt;  // one checkpoint
  double wait_until_written();
  std::vector<std::int64_t> meet(double waited, double trained);

  Optimizer& optimizer_;
  const std::string root_;
  const int keep_;
  std::shared_ptr<Attempt> last_;
};

}  // namespace starling
