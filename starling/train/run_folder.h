// Reads the output folder of a run into curves and figures, for `starling report`. It holds
//
//   metrics.jsonl, recipe.toml, tests.jsonl, summary.json   of `starling train` (metrics.h); the
//                                                           latter two may be missing
//   simulate.jsonl, recipe.toml, cluster.json               of `starling simulate`
//
// A file that is missing, damaged or of another program is a UsageError of one line, which names
// the file and the line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace starling {

// A value at a moment of the run: all are means over the workers.
struct RunPoint {
  double step = 0;
  double seconds = 0;  // of training; virtual in a simulated run
  double bytes = 0;    // sent by a worker until then
  double value = 0;
  double least = 0, most = 0;  // of the workers; equal to the value if it is no mean
};
// By rising step. A value that is not finite is NaN.
using RunCurve = std::vector<RunPoint>;

// At the end, or as far as the run has come. Absent: not known, or not finite.
struct RunFigures {
  bool finished = false;
  int workers = 0;  // at the start
  int workers_lost = 0;
  bool bytes_computed = false;  // Summary::bytes_computed
  std::optional<double> steps, seconds, loss, test_loss, score, worst_score, consensus_distance, bytes,
      waiting_share;
};

struct RunFolder {
  std::string folder;
  bool simulated = false;
  std::string task;      // data.name of the recipe
  std::string topology;  // the choice that was made, if it is auto
  // {"optimizer.lr", "0.002"}: the number of workers, the recipe and the virtual cluster, in the
  // order of the files.
  std::vector<std::pair<std::string, std::string>> settings;

  RunCurve loss;           // of training, since the point before
  RunCurve spread;         // of that loss: the workers' largest less the least
  RunCurve lr;             // learning rate
  RunCurve waiting_share;  // since the point before
  RunCurve step_bytes;     // sent by a worker per step, since the point before
  RunCurve distance;       // of asynchronous workers from their neighbours
  // The average model's:
  RunCurve score;
  RunCurve test_loss;
  RunCurve consensus_distance;

  RunFigures end;
};

// `scores`: the name of each task's score, by the name of the task.
RunFolder read_run_folder(const std::string& folder, const std::map<std::string, std::string>& scores);

}  // namespace starling
