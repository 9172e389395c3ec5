// A record of what one worker does when. Perfetto (ui.perfetto.dev) and chrome://tracing show it.
//
//   world.timeline = std::make_shared<Timeline>(world.rank, world.size);  // before the Optimizer
//   for (...) { world.timeline->step(t); ... }
//   world.timeline->write("out/timeline-0.json");  // `starling timeline out` merges all files
//
// The training thread's spans nest. An exchange lasts from the block's start until the swap is
// decided:
//
//   data, forward, backward      of the trainer
//   gradients                    per block, inside backward: until all its gradients are there,
//                                since the block before
//   optimizer step:              per block: waiting in Exchange::finish(), and the pass over memory
//     wait, mix + update
//   average                      exact averages (Consensus)
//   exchange                     per neighbour, round and block, with its outcome
//   averaging                    of asynchronous gossip, per neighbour: `round` is its number on
//                                the edge, and the outcome is that of all blocks together
//
// Asynchronous gossip also adds curves: `distance` to each neighbour and `gap` of each edge
// after every averaging, and the effective `rate` with each gradient (Statistics in
// optim/optimizer.h).
//
// Files are in Chrome's trace-event format, one event per line; pid is the rank. Each file counts
// microseconds from its own start, and gives that start by the system's clock
// (otherData.start_unix_ns). The merge aligns files by this value: on one host to some
// microseconds, between hosts as precisely as their system clocks agree.
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
  // Only spans and points that begin in these steps are kept. An exchange begins on the transport's
  // thread, possibly just after the end of the step that started it.
  std::int64_t from = 0;
  std::int64_t to = std::numeric_limits<std::int64_t>::max();
  // Spans and points kept, about 60 bytes each; later ones are only counted.
  std::size_t most = std::size_t{1} << 19;
};

class Timeline {
 public:
  static constexpr const char* kFormat = "starling-timeline-1";  // in the file's first line

  struct Span {
    const char* name = "";    // `name` and `outcome` are literals
    int block = -1;           // none
    int peer = -1;            // of an exchange; -1: on the training thread
    std::uint64_t round = 0;  // of an exchange
    const char* outcome = nullptr;
    std::int64_t step = 0;  // set by Scope, like the times
    Time begin{};
    Time end{};
  };

  // A point of a curve.
  struct Point {
    const char* name = "";  // a literal
    int peer = -1;          // of its edge, if it has one
    double value = 0;
    std::int64_t step = 0;  // set by add(), like the time
    Time time{};
  };

  // A span from its construction to its end. Does nothing if `timeline` is null.
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

  // All that begins from now on belongs to this step. Step 0, before the first call, is set-up.
  void step(std::int64_t number) { step_ = number; }
  std::int64_t step() const { return step_; }
  void add(const Span& span);  // from any thread
  // From any thread; the time is now; values that are not finite are dropped.
  void add(Point point);

  std::vector<Span> spans() const;  // spans that have ended, in that order
  std::size_t dropped() const;      // spans and points that came after it was full
  // Writes what has ended so far. Throws Error if the file cannot be written.
  void write(const std::string& path) const;

 private:
  const int rank_;
  const int workers_;
  const TimelineOptions options_;
  Time start_;                      // the files' zero
  std::int64_t start_unix_ns_ = 0;  // the same moment by the system's clock
  std::atomic<std::int64_t> step_ = 0;

  mutable std::mutex mutex_;  // guards the members below
  bool room();
  std::deque<Span> spans_;
  std::deque<Point> points_;
  std::size_t dropped_ = 0;
};

}  // namespace starling
