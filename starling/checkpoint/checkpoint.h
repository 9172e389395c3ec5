// A checkpoint is a folder `step-15` with one file per worker and a manifest; a run's checkpoints lie side by side in
// one folder (root), and the text file `latest` there names the newest.
//
//   each worker     step-15.tmp/worker-R.safetensors, synced
//   one of them     manifest.json; synced; step-15.tmp -> step-15; root synced; read again and verified; only then
//                   `latest` is moved, and only then older ones are removed
//
// So at every moment `latest` names a whole checkpoint, whatever is killed, and a disk that is full costs the new one
// only. All workers must see the same folder.
#pragma once

#include <string>

#include "starling/checkpoint/manifest.h"

namespace starling {

// A checkpoint to read. Nothing of it is believed before it has been verified.
class Checkpoint {
 public:
  // path: a checkpoint, or a root: then the latest. Reads the manifest. Throws Error.
  explicit Checkpoint(const std::string& path);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // The worker's file, after its size and checksum have been compared. Throws Error: not there, damaged, foreign.
  std::string verified(int worker) const;
  void verify_all() const;

 private:
  std::string folder_;
  Manifest manifest_;
};

// Whether there is one in this root.
bool has_checkpoints(const std::string& root);

// Makes root/step-N.tmp, where workers put their files before commit(). May be called by all of them.
std::string draft_checkpoint(const std::string& root, std::int64_t step);
// By one worker, when all files are written: as above. A checkpoint of the same step is replaced. Of those up to this
// step the newest `keep` stay; later ones (of a run that was resumed from before them) are not touched.
void commit_checkpoint(const std::string& root, const Manifest& manifest, int keep);
// By one worker, when one of them failed: removes the draft.
void drop_checkpoint(const std::string& root, std::int64_t step) noexcept;

}  // namespace starling
