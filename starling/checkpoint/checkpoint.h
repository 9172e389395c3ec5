// A checkpoint is a folder `step-15` with one file per worker and a manifest. A run's checkpoints
// lie side by side in one folder (root). The text file `latest` there names the newest.
//
//   each worker     step-15.tmp/worker-R.safetensors, synced
//   one of them     manifest.json; synced; read again and verified; step-15.tmp -> step-15; root
//                   synced; only then `latest` is moved, and only then older ones are removed
//
// At every moment `latest` names a whole checkpoint, whichever process is killed. One exception: a
// checkpoint that replaces the latest one is missing for a moment on a file system that cannot
// exchange two folders (NFS). A full disk costs the new checkpoint only. All workers must see the
// same folder.
#pragma once

#include <string>

#include "starling/checkpoint/manifest.h"

namespace starling {

// A checkpoint to read. Its content is not trusted before it has been verified.
class Checkpoint {
 public:
  // `path`: a checkpoint, or a root, which means its latest one. Reads the manifest. Throws Error.
  explicit Checkpoint(const std::string& path);

  const std::string& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  // The worker's file, after a check of its size and checksum. Throws Error if it is missing,
  // damaged or foreign.
  std::string verified(int worker) const;
  void verify_all() const;

 private:
  std::string folder_;
  Manifest manifest_;
};

// Whether this root has a checkpoint.
bool has_checkpoints(const std::string& root);

// root/step-N.tmp, the folder for the workers' files before commit().
std::string draft_folder(const std::string& root, std::int64_t step);
// Makes it. All workers may call it.
std::string draft_checkpoint(const std::string& root, std::int64_t step);
// Called by one worker when all files are written; does the steps above. Replaces a checkpoint of
// the same step, unless that has files of more workers. The newest `keep` checkpoints up to this
// step stay, and the newest one with the files of all workers: only that can be resumed. Later ones
// (of a run that was resumed from before them) are not touched, nor are drafts of later steps,
// which may be written just now.
void commit_checkpoint(const std::string& root, const Manifest& manifest, int keep);
// Called by one worker when a worker failed: removes the draft.
void drop_checkpoint(const std::string& root, std::int64_t step) noexcept;

}  // namespace starling
