// The pending events of a simulation, at most one of each source, by time. An event may be taken back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <vector>

namespace starling {

// A calendar queue (Brown, "Calendar queues", CACM 31(10), 1988): a ring of buckets, each for a short stretch of time.
// What is due in the present stretch stands in a heap, which is small where times differ. Equal times come by number.
class EventQueue {
 public:
  struct Event {
    double time;
    int source;
  };

  // `span`: about how far ahead events are, in the unit of their times; a good guess makes it fast.
  EventQueue(std::size_t sources, double span)
      : next_(sources, kNone), time_(sources), place_(sources, Place::none), taken_back_(sources) {
    std::size_t buckets = 1024;
    while (buckets < 2 * sources) buckets *= 2;
    first_.assign(buckets, kNone);
    per_width_ = static_cast<double>(buckets) / (span > 1e-9 ? span : 1e-9);
  }

  bool empty() const { return pending_ == 0; }

  // Not before the latest event that was taken; no other event of this source may be pending.
  void push(double time, int source) {
    ++pending_;
    const std::int64_t tick = tick_of(time);
    if (tick <= now_) return is_due(time, source);
    time_[source] = time;
    place_[source] = Place::bucket;
    int& first = first_[bucket_of(tick)];
    next_[source] = first;
    first = source;
  }

  // The source's event, if one is pending.
  void take_back(int source) {
    if (place_[source] == Place::none) return;
    --pending_;
    if (place_[source] == Place::bucket) {
      int* link = &first_[bucket_of(tick_of(time_[source]))];
      while (*link != source) link = &next_[*link];
      *link = next_[source];
    } else {
      ++taken_back_[source];  // it stays in the heap, and is not looked at
    }
    place_[source] = Place::none;
  }

  Event pop() {
    for (;;) {
      while (due_.empty()) advance();
      const Due event = due_.top();
      due_.pop();
      if (event.taken_back != taken_back_[event.source]) continue;
      --pending_;
      place_[event.source] = Place::none;
      return {event.time, event.source};
    }
  }

 private:
  static constexpr int kNone = -1;
  enum class Place : std::uint8_t { none, bucket, heap };

  struct Due {
    double time;
    int source;
    std::uint32_t taken_back;                 // how often the source's events had been, when it was pushed
    bool operator<(const Due& other) const {  // the earliest on top of a heap
      return time != other.time ? time > other.time : source > other.source;
    }
  };

  void is_due(double time, int source) {
    due_.push({time, source, taken_back_[source]});
    place_[source] = Place::heap;
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
        for (; source != kNone; source = next_[source]) earliest = std::min(earliest, tick_of(time_[source]));
      }
      now_ = earliest;
    }
    int* link = &first_[bucket_of(now_)];
    while (*link != kNone) {
      const int source = *link;
      if (tick_of(time_[source]) == now_) {
        *link = next_[source];
        is_due(time_[source], source);
        idle_ = 0;
      } else {
        link = &next_[source];
      }
    }
  }

  double per_width_;
  std::vector<int> first_, next_;  // of a bucket, and of the source that follows in it
  std::vector<double> time_;
  std::vector<Place> place_;               // of the source's event
  std::vector<std::uint32_t> taken_back_;  // of the source, from the heap
  std::priority_queue<Due> due_;
  std::int64_t now_ = -1;
  std::size_t idle_ = 0, pending_ = 0;
};

}  // namespace starling
