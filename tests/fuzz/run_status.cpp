// The folder of a run as `starling status` and `starling top` read it. The input's parts, between
// zero bytes, are metrics.jsonl, tests.jsonl and recipe.toml. phases.cpp has the files of phases.
#include "starling/train/run_status.h"

#include <algorithm>
#include <cmath>

#include "tests/folder.h"
#include "tests/fuzz/target.h"

namespace starling::fuzz {

void read(std::string_view bytes) {
  const Folder folder;
  for (const char* const name : {"metrics.jsonl", "tests.jsonl", "recipe.toml"}) {
    const std::string_view part = bytes.substr(0, bytes.find('\0'));
    spill(folder / name, std::string(part));
    bytes.remove_prefix(std::min(part.size() + 1, bytes.size()));
  }
  accepted([&] {
    const RunStatus status = read_run_status(folder.path, 1e9);
    check(!status.workers.empty(), "a run without a worker");
    int before = -1;
    for (const WorkerStatus& worker : status.workers) {
      check(worker.rank > before, "ranks out of order");
      before = worker.rank;
      check(worker.step.value_or(0) >= 0 && worker.bytes_sent.value_or(0) >= 0, "a count below 0");
      for (const auto& number : {worker.epoch, worker.seconds, worker.loss, worker.step_seconds})
        check(std::isfinite(number.value_or(0)), "a number that is not finite");
    }
    if (status.test) check(status.test->step >= 0, "a test of a step below 0");
  });
}

}  // namespace starling::fuzz
