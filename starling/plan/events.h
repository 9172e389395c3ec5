// The pending events of a simulation, at most one of each source, by time.
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
    bool operator<(const Event& other) const {  // the earliest on top of a heap
      return time != other.time ? time > other.time : source > other.source;
    }
  };

  // `span`: about how far ahead events are, in the unit of their times; a good guess makes it fast.
  EventQueue(std::size_t sources, double span) : next_(sources, kNone), time_(sources) {
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
    if (tick <= now_) return due_.push({time, source});
    time_[source] = time;
    int& first = first_[bucket_of(tick)];
    next_[source] = first;
    first = source;
  }

  Event pop() {
    while (due_.empty()) advance();
    --pending_;
    const Event event = due_.top();
    due_.pop();
    return event;
  }

 private:
  static constexpr int kNone = -1;

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
        due_.push({time_[source], source});
        idle_ = 0;
      } else {
        link = &next_[source];
      }
    }
  }

  double per_width_;
  std::vector<int> first_, next_;  // of a bucket, and of the source that follows in it
  std::vector<double> time_;
  std::priority_queue<Event> due_;
  std::int64_t now_ = -1;
  std::size_t idle_ = 0, pending_ = 0;
};

}  // namespace starling
