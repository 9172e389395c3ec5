// The list of a checkpoint's files: manifest.json in its folder.
//
//   {"format": "starling checkpoint", "version": 1, "step": 15, "workers": 3, "seconds": 12.5,
//    "files": [{"worker": 0, "file": "worker-0.safetensors", "step": 15, "bytes": 4096,
//               "crc32c": "8a9136aa"}, ..],
//    "before": [{"step": 10, "steps": [10, 10]}, ..],
//    "recipe": {"optimizer.lr": "0.01", ..},
//    "crc32c": of this text up to here}
//
// "before" is left out if the run always had this number of workers.
//
// A manifest is refused unless writing its content again gives the same bytes.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "starling/checkpoint/safetensors.h"

namespace starling {

struct WorkerFile {
  int worker = 0;  // rank
  Digest digest{};
  // Steps done by this worker; differs from Manifest::step if workers make different numbers.
  std::int64_t step = 0;
  std::string name() const;  // "worker-0.safetensors"
};

// The run until it went on with other workers.
struct EarlierWorkers {
  std::int64_t step = 0;              // with which the others began
  std::vector<std::int64_t> steps{};  // by rank: the steps that each had done; at least one worker
};

struct Manifest {
  std::int64_t step = 0;            // steps done, in the mean of all workers
  int workers = 1;                  // of the run
  double seconds = 0;               // of training so far
  std::vector<WorkerFile> files{};  // by rising rank, of the workers that took part
  std::vector<EarlierWorkers> before{};
  // The run's settings: {"optimizer.lr", "0.01"}
  std::vector<std::pair<std::string, std::string>> recipe{};
};

// `before` of a run that goes on from this checkpoint with other workers. A worker without a file
// counts as if it had done the steps of the run.
std::vector<EarlierWorkers> before_others(const Manifest& manifest);

std::string worker_file(int worker);
std::string to_json(const Manifest& manifest);
// `path` is the file name in messages. Throws Error.
Manifest parse_manifest(const std::string& text, const std::string& path);
// Throws Error also if the file cannot be read, or is too large for a manifest.
Manifest read_manifest(const std::string& path);

}  // namespace starling
