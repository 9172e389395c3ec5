// What a run leaves behind under its output folder:
//
//   metrics.jsonl   one JSON object per line: one per logged step and worker, in the order in which they were written; of
//                   mixing.topology = auto first {"step": 0, "topology": NAME, "why": ...}.
//                   With asynchronous schemes also what Statistics::rate, distance and edges are, since the start
//   summary.json    one JSON object, written at the end by the lowest rank that is still there
//   timeline-R.json, tensorboard/worker-R/    where the recipe asks for them (core/timeline.h, tensorboard.h)
//
// In a run that was resumed, steps, samples and seconds count on from the checkpoint; waiting and bytes are those since
// then.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/optim/optimizer.h"

namespace starling {

// One worker's step, as it logs it. Means and sums reach back to the line before.
struct StepRecord {
  int rank = 0;
  std::int64_t step = 0;  // counted from 1
  double epoch = 0;
  std::int64_t samples = 0;  // of this worker since the start
  double seconds = 0;        // since the start
  double loss = 0;           // mean
  double lr = 0;
  double waiting_share = 0;  // part of the time that went by waiting for neighbours
  std::uint64_t bytes_sent = 0;
  // Of asynchronous schemes: averagings for each gradient, how far this worker was from its neighbours when it last averaged with
  // them, each edge, and how its asking went.
  struct Gossip {
    double rate = 0;
    double distance = 0;
    std::vector<Statistics::Edge> edges;
    Statistics::Questions questions;
  };
  std::optional<Gossip> gossip{};
};

struct Summary {
  std::string scheme;
  std::string schedule;  // of the topology
  std::string rule;
  std::string wire;
  int one_in = 1;
  int workers = 0;  // at the start
  int workers_lost = 0;
  std::int64_t steps = 0;
  std::int64_t samples = 0;  // of all workers that are there at the end
  double seconds = 0;        // training, without setting up and testing
  double loss = 0;           // training loss over the last lines of metrics.jsonl, mean of the workers
  double test_loss = 0;      // of the average model
  std::string score_name;    // ScoreInfo::name
  double score = 0;          // of the average model, on the test set
  double worst_score = 0;    // of the worst single worker's own model, on the test set
  double consensus_distance = 0;
  std::uint64_t bytes_sent_per_worker = 0;  // mean
  bool bytes_computed = false;              // not counted but computed as 2M(n-1)/n per step
  double waiting_share = 0;                 // mean
  // Blocks that were not mixed since a neighbour was late, gone or sent damage: mean of the workers, counted per edge.
  // directed_aborted are those on directed edges: each moved the mean of all parameters a little.
  double blocks_aborted = 0;
  double directed_aborted = 0;
  double questions_unanswered = 0;  // in time, of asynchronous schemes: mean of the workers
  double steps_skipped =
      0;  // whose gradient overflowed (fp16 weights), so that they mixed only: mean of the workers
  std::int64_t seed = 0;
};
std::string to_json(const Summary& summary);  // with the versions of Starling and torch; indented

// Writes metrics.jsonl. Workers that share the folder share the file: each line is one write() to a file opened for
// appending, which the kernel keeps whole and in order.
class Metrics {
 public:
  // Makes the folder. Throws Error where that or a later write fails.
  explicit Metrics(std::string folder);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Removes what an earlier run left in the folder. By one worker, before any writes.
  void clear();
  // The same, for a run that goes on after these steps of each rank: lines up to them stay.
  void clear_after(std::span<const std::int64_t> steps);
  void write(const StepRecord& record);
  void write_chosen(const std::string& topology, const std::string& why);
  void write(const Summary& summary);

 private:
  std::string folder_;
  int file_ = -1;
};

}  // namespace starling
