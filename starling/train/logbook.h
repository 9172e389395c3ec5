// One worker's record of its run: progress for the observer, the files of metrics.h, event files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "starling/optim/optimizer.h"
#include "starling/train/auto_topology.h"
#include "starling/train/evaluate.h"
#include "starling/train/metrics.h"
#include "starling/train/recipe.h"
#include "starling/train/tensorboard.h"
#include "starling/train/trainer.h"
#include "starling/world/world.h"

namespace starling {

// How long a run is, and where this worker begins in it.
struct RunLength {
  std::int64_t steps = 0;
  double steps_per_epoch = 0;
  std::int64_t first_step = 0;
  double first_seconds = 0;  // of training, in the run that this one resumes
  // The place where this number of workers began: 0 if the run always had it.
  std::int64_t begin = 0;          // step
  double begin_epochs = 0;         // done until then
  std::int64_t begin_samples = 0;  // this worker's share of those until then
};

class Logbook {
 public:
  Logbook(const Recipe& recipe, const World& world, const Observer& observer, Metrics& metrics,
          const RunLength& length);

  struct Step {
    std::int64_t number = 0;  // this worker's own, from 1; some are left out if it was away
    double loss = 0;
    double lr = 0;
    double seconds = 0;
  };
  // Records a step of this worker. `done`: steps of the run after it, this worker's own or the mean
  // of all workers'. The line of the run's last step is always written.
  void add(const Step& step, const Statistics& now, std::int64_t done);
  void add_choice(const ChosenTopology& chosen);
  // A test of the average model, which the worker that speaks records.
  void add_test(const AverageScore& test);

  std::int64_t samples() const { return length_.begin_samples + (step_ - length_.begin) * batch_; }
  double seconds() const { return seconds_; }         // of training
  double loss() const { return loss_; }               // of the latest line
  double waiting_share(const Statistics& now) const;  // of this run's time

 private:
  double epoch_at(std::int64_t step) const;
  void show_progress(const Statistics& now, std::int64_t done) const;
  void write_line(double lr, const Statistics& now);
  void write_events(double lr, double seconds, double waiting_share, const Statistics& now);
  // A failure of f() costs the rest of the event file, and a warning.
  void on_events(const std::function<void()>& f);
  void with_events(const std::function<void(EventFile&)>& f);  // if there is one

  const Log log_;
  const Observer& observer_;
  Metrics& metrics_;
  std::optional<EventFile> events_;
  const ScoreInfo& score_;
  const bool asynchronous_;
  const std::int64_t every_;
  const std::int64_t batch_;  // samples of a step
  const int rank_;
  const int workers_;
  const RunLength length_;
  std::int64_t step_;
  double seconds_;
  double loss_ = 0;
  // Since the latest line:
  double losses_ = 0;
  int losses_counted_ = 0;
  // At the latest line:
  double waited_ = 0;
  double seconds_at_line_;
};

}  // namespace starling
