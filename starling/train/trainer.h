// One worker's training run, as a recipe describes it.
#pragma once

#include <functional>
#include <string>

#include "starling/train/metrics.h"
#include "starling/train/recipe.h"
#include "starling/world/world.h"

namespace starling {

// How far the run is after a step.
struct Progress {
  std::int64_t step = 0;  // completed
  std::int64_t steps = 0;
  double epoch = 0;
  double epochs = 0;
  double loss = 0;                // this worker's mean since the last line of metrics.jsonl
  double samples_per_second = 0;  // of all workers, if each is as fast as this one
  double seconds_left = 0;
  double waiting_share = 0;  // since the start
};

struct Observer {
  std::function<void(const Progress&)> progress;  // after each step
  // A message: the result of a test of the average model, or the chosen topology. Called in one
  // worker.
  std::function<void(const std::string&)> says;
  std::function<bool()> interrupted;  // called before each step; true ends the run
};

// Observer::interrupted ended the run.
struct RunInterrupted {};

// Three checks of a recipe before workers start. Each throws as train() would.
// Scheme, topology and their options for these workers. Looks for no data.
void check_settings(const Recipe& recipe, int workers, int local_workers);
// This machine: instruction set, device and data.
void check_machine(const Recipe& recipe);
// The settings, then the machine, then the checkpoint or model that the run begins with.
void check_recipe(const Recipe& recipe, int workers, int local_workers);

// Whether a worker that was started again can join the others. Throws UsageError if it cannot.
void check_restarts(const Recipe& recipe, int workers);

// Sets torch's threads in this process: run.threads, or its share of the cores. Call it once,
// before train().
void limit_threads(const Recipe& recipe, const World& world);

// Shows the phases of this process in run.out (core/phases.h). Call it once, before train(). A
// failure is a warning.
void leave_phases(const Recipe& recipe, const World& world);

// The recipe's part of a run's summary; all figures are 0.
Summary begun_summary(const Recipe& recipe, int workers);

struct Result {
  Summary summary;      // the same on all workers that are left
  bool speaks = false;  // this worker has the lowest rank of them
};

// Trains and tests. Writes metrics.jsonl, event files and the timeline under run.out, as the
// recipe's log section asks; the worker that speaks also writes summary.json. Every worker of the
// world calls it with the same recipe. With mixing.topology = auto the planner first chooses a
// topology (auto_topology.h). metrics.jsonl, summary.json, event files and checkpoints name the
// choice, and a resumed run keeps it. A run that is resumed from a checkpoint gives the same bits
// as one that was not stopped. An output that cannot be written, on a full disk, is a
// warning. Throws RunInterrupted, after writing the timeline; UsageError for a
// recipe that is not possible; Error for missing data, for a loss that is not finite, and with
// all-reduce for a lost worker.
Result train(const Recipe& recipe, const World& world, const Observer& observer = {});

}  // namespace starling
