// The training run of one worker, as a recipe describes it.
#pragma once

#include <functional>
#include <string>

#include "starling/train/metrics.h"
#include "starling/train/recipe.h"
#include "starling/world/world.h"

namespace starling {

// Where the run stands, after a step.
struct Progress {
  std::int64_t step = 0;  // done
  std::int64_t steps = 0;
  double epoch = 0;
  double epochs = 0;
  double loss = 0;                // of this worker, mean since the last line of metrics.jsonl
  double samples_per_second = 0;  // of all workers, if they are as fast as this one
  double seconds_left = 0;
  double waiting_share = 0;  // since the start
};

struct Observer {
  std::function<void(const Progress&)> progress;  // after each step
  // A line for each test of the average model on the way, and for the topology that was chosen; by one worker.
  std::function<void(const std::string&)> says;
  std::function<bool()> interrupted;  // asked before each step; true ends the run
};

// The run was ended from outside before it was done.
struct RunInterrupted {};

// What can be checked before workers are started: data, topology and checkpoints. Throws as train() would.
void check_recipe(const Recipe& recipe, int workers, int local_workers);

// Torch's threads in this process: run.threads, or its part of the cores. Once per process, before train().
void limit_threads(const Recipe& recipe, const World& world);

struct Result {
  Summary summary;      // the same on all workers that are left
  bool speaks = false;  // this one is the lowest rank of them
};

// Trains, tests, and writes metrics.jsonl and summary.json (that by the one that speaks) under run.out, and what else
// the recipe's log section asks for: event files as it goes, the timeline at the end or when it is interrupted. Every
// worker of the world must call it with the same recipe.
// With mixing.topology = auto the planner chooses one first (auto_topology.h); the choice is in metrics.jsonl, summary.json, event
// files and checkpoints, and a resumed run keeps it.
// With checkpoint.resume it goes on from there, and equals to the bit a run that was not stopped.
// Throws RunInterrupted; UsageError for a recipe that cannot be; Error for what fails on the way: missing data, a loss
// that is no number, and with all-reduce a lost worker.
Result train(const Recipe& recipe, const World& world, const Observer& observer = {});

}  // namespace starling
