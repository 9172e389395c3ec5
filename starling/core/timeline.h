// What one worker does when, to be looked at in Perfetto (ui.perfetto.dev) or chrome://tracing.
//
//   world.timeline = std::make_shared<Timeline>(world.rank, world.size);   // before the Optimizer is made
//   for (...) { world.timeline->step(t); ... }
//   world.timeline->write("out/timeline-0.json");     // `starling timeline out` merges the files of all workers
//
// The training thread's spans nest; an exchange lasts from the block's start until the swap is decided:
//
//   data, forward, backward               of the trainer
//   gradients                             per block, inside backward: until all its gradients are there, since the block before
//   optimizer step: wait, mix + update    per block: waiting in Exchange::finish(), and the pass over memory
//   average                               exact averages (Consensus)
//   exchange                              per neighbour, round and block, with its outcome
//   averaging                             of asynchronous gossip: per neighbour, `round` is its number on the edge, with its
//                                         outcome: of all blocks together
//
// With asynchronous gossip also curves: `distance` to each neighbour and `staleness` of each edge whenever they have averaged, and
// the effective `rate` with each gradient (Statistics in optim/optimizer.h).
//
// Files are in Chrome's trace-event format, one event per line; pid is the rank. Each counts microseconds from its own
// start, and names that start by the system's clock (otherData.start_unix_ns), by which the files are aligned: on one
// host to some microseconds, between hosts as well as their system clocks agree.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

#include "starling/core/clock.h"

namespace starling {

struct TimelineOptions {
  // Only what begins in these steps is kept. An exchange begins on the transport's thread, which may be just after the
  // end of the step that started it.
  std::int64_t from = 0;
  std::int64_t to = std::numeric_limits<std::int64_t>::max();
  std::size_t most =
      std::size_t{1} << 19;  // spans and points kept, about 60 bytes each; later ones are only counted
};

class Timeline {
 public:
  static constexpr const char* kFormat = "starling-timeline-1";  // in the file's first line

  struct Span {
    const char* name = "";    // this and outcome are literals
    int block = -1;           // none
    int peer = -1;            // of an exchange; else it is on the training thread
    std::uint64_t round = 0;  // of an exchange
    const char* outcome = nullptr;
    std::int64_t step = 0;  // set by Scope, as are the times
    Time begin{};
    Time end{};
  };

  // A point of a curve.
  struct Point {
    const char* name = "";  // a literal
    int peer = -1;          // whose edge it is of, if any
    double value = 0;
    std::int64_t step = 0;  // set by add(), as is the time
    Time time{};
  };

  // From its construction to its end. Where `timeline` is null it does nothing.
  class Scope {
   public:
    Scope(Timeline* timeline, Span span);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    void outcome(const char* literal) { span_.outcome = literal; }

   private:
    Timeline* const timeline_;
    Span span_;
  };

  Timeline(int rank, int workers, TimelineOptions options = {});

  // What begins from now on belongs to this step. Before the first call it is step 0: setting up.
  void step(std::int64_t number) { step_ = number; }
  std::int64_t step() const { return step_; }
  void add(const Span& span);  // from any thread, as
  void add(Point point);       // this, which is of now. What is not finite is left out

  std::vector<Span> spans() const;  // that have ended so far, in that order
  std::size_t dropped() const;      // spans and points that came after it was full
  // What has ended so far. Throws Error where the file cannot be written.
  void write(const std::string& path) const;

 private:
  const int rank_;
  const int workers_;
  const TimelineOptions options_;
  Time start_;                      // the files' zero ..
  std::int64_t start_unix_ns_ = 0;  // .. by the system's clock
  std::atomic<std::int64_t> step_ = 0;

  mutable std::mutex mutex_;  // guards what follows
  bool room();
  std::deque<Span> spans_;
  std::deque<Point> points_;
  std::size_t dropped_ = 0;
};

}  // namespace starling
