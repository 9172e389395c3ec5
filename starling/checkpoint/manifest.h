// What a checkpoint consists of: manifest.json in its folder.
//
//   {"format": "starling checkpoint", "version": 1, "step": 15, "workers": 3, "seconds": 12.5,
//    "files": [{"worker": 0, "file": "worker-0.safetensors", "step": 15, "bytes": 4096, "crc32c": "8a9136aa"}, ..],
//    "recipe": {"optimizer.lr": "0.01", ..},
//    "crc32c": of this text up to here}
//
// Refused is every manifest that is not, to the byte, what would be written for what it says.
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
  std::int64_t step =
      0;  // done by this worker: not Manifest::step where workers make different numbers of them
  std::string name() const;  // "worker-0.safetensors"
};

struct Manifest {
  std::int64_t step = 0;            // done, in the mean of all workers
  int workers = 1;                  // of the run
  double seconds = 0;               // of training so far
  std::vector<WorkerFile> files{};  // by rising rank, of the workers that were there
  std::vector<std::pair<std::string, std::string>>
      recipe{};  // what the run was told: {"optimizer.lr", "0.01"}
};

std::string worker_file(int worker);
std::string to_json(const Manifest& manifest);
// `path` stands for the text in messages. Throws Error.
Manifest parse_manifest(const std::string& text, const std::string& path);

}  // namespace starling
