// The list of a checkpoint's files: manifest.json in its folder.
//
//   {"format": "starling checkpoint", "version": 1, "step": 15, "workers": 3, "seconds": 12.5,
//    "files": [{"worker": 0, "file": "worker-0.safetensors", "step": 15, "bytes": 4096,
//               "crc32c": "8a9136aa"}, ..],
//    "recipe": {"optimizer.lr": "0.01", ..},
//    "crc32c": of this text up to here}
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

struct Manifest {
  std::int64_t step = 0;            // steps done, in the mean of all workers
  int workers = 1;                  // of the run
  double seconds = 0;               // of training so far
  std::vector<WorkerFile> files{};  // by rising rank, of the workers that took part
  // The run's settings: {"optimizer.lr", "0.01"}
  std::vector<std::pair<std::string, std::string>> recipe{};
};

std::string worker_file(int worker);
std::string to_json(const Manifest& manifest);
// `path` is the file name in messages. Throws Error.
Manifest parse_manifest(const std::string& text, const std::string& path);

}  // namespace starling
