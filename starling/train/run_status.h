// The present state of a run, read from its folder (metrics.h) while the workers train. It trusts
// no file: it leaves out what is missing or damaged, and reads only the end of a long file.
//
// A worker is late if it has been in one phase of a step (data, forward, backward, optimizer,
// exchange) for at least 1 s and three times the median step time, or for a minute while no step
// time is known. A worker in `exchange` waits for others: it is late only if no worker is late in
// another phase, and none is gone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "starling/core/host.h"
#include "starling/core/phases.h"

namespace starling {

struct WorkerStatus {
  int rank = 0;
  // From its file of phases; nothing if there is none.
  std::optional<WorkerPhases> phases{};
  // From the end of metrics.jsonl.
  std::optional<std::int64_t> step{}, bytes_sent{}, blocks_aborted{}, blocks_jumped{};
  std::optional<std::int64_t> round{}, membership{}, joins{};  // Statistics
  std::optional<double> epoch{}, seconds{}, loss{}, waiting_share{};
  std::optional<double> rate{}, distance{};  // asynchronous schemes: Statistics
  std::optional<double> step_seconds{};      // mean of its latest lines
  bool late = false;

  WorkerPhases::Process process() const;
  // The phase of the training thread, and for how long it has been there.
  const WorkerPhases::Phase* phase() const;
  double seconds_in_phase(double now) const;
};

struct RunStatus {
  // ended: no worker is left, and the run is not finished.
  enum class State { unknown, running, finished, ended };

  std::string folder;
  double now = 0;  // seconds since 1970
  State state = State::unknown;
  std::string scheme, topology;                        // empty: not known
  std::vector<WorkerStatus> workers;                   // by rank
  std::optional<std::int64_t> step, round;             // median of the workers
  std::optional<std::int64_t> membership;              // the largest of any
  std::optional<double> epoch, seconds, step_seconds;  // median of the workers

  // The latest test of the average model.
  struct Test {
    std::int64_t step = 0;
    std::string score_name;
    std::optional<double> score, loss, consensus_distance;
  };
  std::optional<Test> test;
};

const char* name_of(RunStatus::State state);         // "running"
const char* name_of(WorkerPhases::Process process);  // "running"

// `now`: seconds since 1970. Throws UsageError if the folder is missing, or holds no run of
// `starling train`.
RunStatus read_run_status(const std::string& folder, double now = unix_seconds());

}  // namespace starling
