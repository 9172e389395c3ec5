// A fire drill of a run: its workers are killed and stopped at random while they train, and started
// again. The run is followed by its metrics.jsonl alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "starling/core/clock.h"

namespace starling {

struct DrillOptions {
  int workers = 0;
  std::vector<std::string> arguments;  // of this executable: the command that a worker runs
  std::string out;                     // the run's folder, in which it writes metrics.jsonl
  Duration kill_every{};               // mean time between two faults, which come at random
  Duration lasts{};                    // faults come for this long; then the run goes on to its end
  double stop_share = 0;               // of the faults: SIGSTOP for 1 to 10 s instead of SIGKILL
  std::uint64_t seed = 0;
  Duration hangs{};  // no worker has logged a step for this long: the run hangs
  // A message, such as the death of a worker that the drill has not killed.
  std::function<void(const std::string&)> say = [](const std::string&) {};
  std::function<void(const struct DrillReport&)> progress = [](const struct DrillReport&) {};
};

// Times are seconds since the start of the drill.
struct DrillStop {
  double begin = 0, end = 0;
};
// One process of a worker.
struct DrillLife {
  double begin = 0;
  std::optional<double> joined{};  // its first line in metrics.jsonl
  std::optional<double> end{};
  bool killed = false;  // by the drill
  int status = 0;       // of waitpid(), once it has ended
  std::vector<DrillStop> stops{};
};
struct DrillWorker {
  std::vector<DrillLife> lives;
  std::int64_t step = 0;           // the last that it has logged
  std::uint64_t memory_begin = 0;  // resident bytes of the first process when it had joined
  std::uint64_t memory_end = 0;    // .. of the last one, shortly before its end
  std::string last_phase;          // only if the run hangs
};

struct DrillReport {
  std::vector<DrillWorker> workers;  // by rank
  double seconds = 0;
  int kills = 0, stops = 0;
  int deaths = 0;               // of workers that failed or died by themselves
  std::vector<double> rejoins;  // seconds from each death to the first line of the next life
  bool hung = false;
  int exit_code = 0;  // that of launch_workers()

  int restarts() const;
  bool there(int rank) const;  // it runs, has joined, and is not stopped
};

// Runs it to its end. Kills begin once all workers have joined. The last worker that is there is
// never killed or stopped. The workers print to drill.log in the folder. A run that hangs
// is ended, after its workers' last phases were noted. Removes metrics.jsonl and summary.json of an
// earlier run. Call it from the main thread before other threads start, as launch_workers(). Throws
// Error.
DrillReport drill(const DrillOptions& options);

}  // namespace starling
