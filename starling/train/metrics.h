// The files of a run in its output folder:
//
//   metrics.jsonl   one JSON object per line, for each logged step of each worker, in the order of
//                   writing. With mixing.topology = auto the first line is
//                   {"step": 0, "topology": NAME, "why": ...}, and where other workers went on
//                   there is another such line. Asynchronous schemes add Statistics::rate, distance
//                   and edges since the start
//   tests.jsonl     one JSON object per line, for each test of the average model
//   recipe.toml     every key of the recipe with the value that it had, overrides included
//   resumed.json    the manifest of the checkpoint that the run was resumed from
//   summary.json    one JSON object, written at the end by the lowest rank that is left, or by
//                   `starling simulate`, whose seconds are virtual
//   phases/worker-R where each worker is, and whether its process lives (core/phases.h)
//   timeline-R.json, tensorboard/worker-R/
//                   if the recipe asks for them (core/timeline.h, tensorboard.h)
//
// In a resumed run, steps, samples and seconds include those before the checkpoint; waiting and
// bytes do not. A worker that comes into a run goes on from the latest seconds.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "starling/checkpoint/manifest.h"
#include "starling/core/log.h"
#include "starling/optim/optimizer.h"
#include "starling/train/lines_file.h"

namespace starling {

// A line of one worker. Means and sums are taken since the line before.
struct StepRecord {
  int rank = 0;
  std::int64_t step = 0;  // counted from 1
  double epoch = 0;
  std::int64_t samples = 0;  // of this worker since the start
  double seconds = 0;        // since the start
  double loss = 0;           // mean
  double lr = 0;
  double waiting_share = 0;  // of the time, for neighbours
  std::uint64_t bytes_sent = 0;
  std::uint64_t round = 0;  // this and the next two as in Statistics
  std::uint64_t membership = 0;
  std::uint64_t joins = 0;
  std::uint64_t blocks_aborted = 0;  // of this worker since the start
  std::uint64_t blocks_jumped = 0;   // of these, refused by it (Options::jump_guard)
  std::map<int, std::uint64_t> mixed{};
  // Asynchronous schemes: averagings per gradient, the distance from the neighbours at the last
  // averagings with them, the edges, and the fate of this worker's requests.
  struct Gossip {
    double rate = 0;
    double distance = 0;
    std::vector<Statistics::Edge> edges;
    Statistics::Questions questions;
  };
  std::optional<Gossip> gossip{};
};

// A test of the average model, by the worker that speaks.
struct TestRecord {
  std::int64_t step = 0;  // of that worker, counted from 1
  double seconds = 0;     // of training, since the start
  double test_loss = 0;
  std::string score_name;  // ScoreInfo::name
  double score = 0;
  double consensus_distance = 0;
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
  std::int64_t samples = 0;  // of all workers that are left at the end
  double seconds = 0;        // of training, without setup and tests
  double loss = 0;           // of training, in the last lines of metrics.jsonl: mean of the workers
  double test_loss = 0;      // of the average model
  std::string score_name;    // ScoreInfo::name
  double score = 0;          // of the average model, on the test set
  // The worst single worker's own model, on the test set. A simulated run does not test it.
  std::optional<double> worst_score;
  double consensus_distance = 0;
  std::uint64_t bytes_sent_per_worker = 0;    // mean
  std::uint64_t payload_sent_per_worker = 0;  // of these, without headers and control: mean
  bool bytes_computed = false;                // as 2M(n-1)/n per step, not counted
  double waiting_share = 0;                   // mean
  // Blocks that were not mixed because a neighbour was late, lost or sent damaged data, counted per
  // edge: mean of the workers. directed_aborted counts those on directed edges, each of which moved
  // the mean of all parameters a little.
  double blocks_aborted = 0;
  double blocks_jumped = 0;  // of these, refused by mixing.jump_guard
  double directed_aborted = 0;
  double questions_unanswered = 0;  // in time, by asynchronous schemes: mean of the workers
  // Mixed only, since the gradient overflowed (fp16): mean of the workers.
  double steps_skipped = 0;
  std::int64_t seed = 0;
  // Task::class_counts(); left out if the task has no classes.
  std::vector<std::vector<std::int64_t>> class_counts{};
};
std::string to_json(const Summary& summary);  // with the versions of Starling and torch; indented

// Writes these files. Workers with the same folder share metrics.jsonl: each line is one write() to
// a file that is open for appending, so the kernel keeps lines whole. A line or a file that cannot
// be written, on a full disk, is a warning: the run goes on.
class Metrics {
 public:
  // Makes the folder. Throws Error if that fails, or if the files of an earlier run cannot be
  // removed.
  explicit Metrics(std::string folder, Log log = [](Level, const std::string&) {});
  // As write_resumed() wrote it into this folder. Throws Error.
  static Manifest resumed(const std::string& folder);
  // Removes the files of an earlier run, of `starling simulate` too, but for the lines up to these
  // steps of each rank. One worker of each host calls it, before any worker writes. A line of
  // another form is dropped with a warning. A full disk does not cost the others.
  void clear_after(std::span<const std::int64_t> steps);
  double latest_seconds() const { return starling::latest_seconds(lines_.path()); }
  void write(const StepRecord& record);
  void write_chosen(const std::string& topology, const std::string& why);
  void write_test(const TestRecord& record);
  void write_recipe(const std::string& toml);
  // The checkpoint that the run goes on from: for workers that come into the run later.
  void write_resumed(const Manifest& checkpoint);
  void write(const Summary& summary);

 private:
  void write_whole(const std::string& name, const std::string& text);

  const std::string folder_;
  const std::string tests_;  // the path of tests.jsonl
  const Log log_;
  LinesFile lines_;  // metrics.jsonl
};

}  // namespace starling
