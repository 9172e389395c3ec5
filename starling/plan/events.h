// The pending events of a simulation, by time, at most one of each source. An event may be
// withdrawn.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

[[noreturn]] inline void refuse_more_than(std::uint64_t events) {
  throw UsageError(
      fmt::format("simulate: more than {} events, because workers differ too much in speed, or there are "
                  "too many workers, blocks, iterations or steps between exchanges",
                  events));
}

// A calendar queue (Brown, "Calendar queues", CACM 31(10), 1988): a ring of buckets, each for a
// short interval. Events of the current interval are in a heap, which is small if times differ.
// Events at equal times come in the order of their sources.
class EventQueue {
 public:
  struct Event {
    double time;
    int source;
  };

  // For sources 0 .. `sources` - 1. `pending`: estimated number of pending events. `span`: how far
  // ahead they are, in the unit of their times. Good estimates make it fast. `most`: the work that
  // pop() does before it throws, in events.
  EventQueue(std::size_t sources, std::size_t pending, double span, std::uint64_t most = UINT64_MAX)
      : most_(most), sources_(sources) {
    std::size_t buckets = 1024;
    while (buckets < 2 * pending) buckets *= 2;
    first_.assign(buckets, kNone);
    per_width_ = static_cast<double>(buckets) / (span > 1e-9 ? span : 1e-9);
  }

  bool empty() const { return pending_ == 0; }

  // Not before the latest event that was taken. No other event of this source may be pending.
  void push(double time, int source) {
    ++pending_;
    const std::int64_t tick = tick_of(time);
    if (tick <= now_) return is_due(time, source);
    int& first = first_[bucket_of(tick)];
    sources_[source].time = time;
    sources_[source].place = Place::bucket;
    sources_[source].next = first;
    first = source;
  }

  // Withdraws the source's event, if one is pending.
  void take_back(int source) {
    Source& of = sources_[source];
    if (of.place == Place::none) return;
    --pending_;
    if (of.place == Place::bucket) {
      int* link = &first_[bucket_of(tick_of(of.time))];
      while (*link != source) link = &sources_[*link].next;
      *link = of.next;
    } else {
      ++of.taken_back;  // it stays in the heap, and is ignored
    }
    of.place = Place::none;
  }

  // Throws UsageError after `most` events.
  Event pop() {
    if (++work_ > most_) refuse_more_than(most_);
    for (;;) {
      while (due_.empty()) advance();
      const Due event = due_.top();
      due_.pop();
      Source& of = sources_[event.source];
      if (event.taken_back != of.taken_back) continue;
      --pending_;
      of.place = Place::none;
      return {event.time, event.source};
    }
  }

 private:
  static constexpr int kNone = -1;
  static constexpr std::size_t kBucketsLikeAnEvent = 64;  // a lap past so many takes as long
  enum class Place : std::uint8_t { none, bucket, heap };

  struct Source {
    double time = 0;               // of its event, in a bucket
    int next = kNone;              // the next source in the bucket
    std::uint32_t taken_back = 0;  // number of its events withdrawn from the heap
    Place place = Place::none;     // of its event
  };
  struct Due {
    double time;
    int source;
    std::uint32_t taken_back;                 // the source's `taken_back` at the push
    bool operator<(const Due& other) const {  // the earliest on top of a heap
      return time != other.time ? time > other.time : source > other.source;
    }
  };

  void is_due(double time, int source) {
    due_.push({time, source, sources_[source].taken_back});
    sources_[source].place = Place::heap;
  }

  std::int64_t tick_of(double time) const {
    return static_cast<std::int64_t>(std::min(time * per_width_, 4e18));
  }
  std::size_t bucket_of(std::int64_t tick) const {
    return static_cast<std::size_t>(tick) & (first_.size() - 1);
  }

  void advance() {
    ++now_;
    if (++idle_ > first_.size()) {  // a lap without an event: all are further ahead
      std::int64_t earliest = INT64_MAX;
      for (int source : first_) {
        for (; source != kNone; source = sources_[source].next)
          earliest = std::min(earliest, tick_of(sources_[source].time));
      }
      now_ = earliest;
      work_ += first_.size() / kBucketsLikeAnEvent;
    }
    int* link = &first_[bucket_of(now_)];
    while (*link != kNone) {
      const int source = *link;
      Source& of = sources_[source];
      if (tick_of(of.time) == now_) {
        *link = of.next;
        is_due(of.time, source);
        idle_ = 0;
      } else {
        link = &of.next;
      }
    }
  }

  const std::uint64_t most_;
  std::uint64_t work_ = 0;
  double per_width_;
  std::vector<int> first_;  // of a bucket
  std::vector<Source> sources_;
  std::priority_queue<Due> due_;
  std::int64_t now_ = -1;
  std::size_t idle_ = 0, pending_ = 0;
};

}  // namespace starling
