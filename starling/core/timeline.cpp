#include "starling/core/timeline.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {
namespace {

constexpr int kTrainingThread = 1;  // its tid; exchanges follow

std::int64_t nanoseconds(Duration d) { return std::chrono::nanoseconds(d).count(); }

// Trace events use microseconds.
std::string microseconds(Duration d) {
  const std::int64_t ns = nanoseconds(d);
  return fmt::format("{}.{:03}", ns / 1000, ns % 1000);
}

// Swaps with one neighbour overlap, but spans of one thread must not. Each span gets the lowest
// free lane. Spans of the training thread nest, so one lane holds them all. The spans are sorted by
// their begin.
std::vector<int> lanes_of(const std::vector<Timeline::Span>& spans, bool nested) {
  std::vector<int> lanes;
  std::vector<Time> busy_until(1);
  for (const Timeline::Span& span : spans) {
    std::size_t lane = 0;
    while (!nested && lane < busy_until.size() && busy_until[lane] > span.begin) ++lane;
    busy_until.resize(std::max(busy_until.size(), lane + 1));
    busy_until[lane] = span.end;
    lanes.push_back(static_cast<int>(lane));
  }
  return lanes;
}

// One line of the file: a name for a process or a thread.
std::string label(const char* what, int rank, int tid, const std::string& name) {
  return fmt::format(R"({{"ph":"M","name":"{}","pid":{},"tid":{},"args":{{"name":"{}"}}}})", what, rank, tid,
                     name);
}

std::string event(const Timeline::Span& s, Time start, int rank, int tid) {
  std::string about = s.peer < 0 ? fmt::format(R"("step":{})", s.step)
                                 : fmt::format(R"("peer":{},"round":{})", s.peer, s.round);
  if (s.block >= 0) about += fmt::format(R"(,"block":{})", s.block);
  if (s.outcome != nullptr) about += fmt::format(R"(,"outcome":"{}")", s.outcome);
  return fmt::format(R"({{"ph":"X","name":"{}","pid":{},"tid":{},"ts":{},"dur":{},"args":{{{}}}}})", s.name,
                     rank, tid, microseconds(s.begin - start), microseconds(s.end - s.begin), about);
}

std::string event(const Timeline::Point& p, Time start, int rank) {
  const std::string name = p.peer < 0 ? p.name : fmt::format("{}, worker {}", p.name, p.peer);
  return fmt::format(R"({{"ph":"C","name":"{}","pid":{},"ts":{},"args":{{"value":{}}}}})", name, rank,
                     microseconds(p.time - start), p.value);
}

}  // namespace

Timeline::Scope::Scope(Timeline* timeline, Span span) : timeline_(timeline), span_(span) {
  if (timeline_ == nullptr) return;
  span_.step = timeline_->step_;
  span_.begin = Clock::now();
}

Timeline::Scope::~Scope() {
  if (timeline_ == nullptr) return;
  span_.end = Clock::now();
  timeline_->add(span_);
}

Timeline::Timeline(int rank, int workers, TimelineOptions options)
    : rank_(rank), workers_(workers), options_(options) {
  // Reads both clocks at the same moment. A try in which this thread was interrupted between the
  // two reads is dropped.
  auto shortest = Duration::max();
  for (int i = 0; i < 10; ++i) {
    const Time before = Clock::now();
    const auto unix_time = std::chrono::system_clock::now().time_since_epoch();
    const Duration took = Clock::now() - before;
    if (took >= shortest) continue;
    shortest = took;
    start_ = before;
    start_unix_ns_ = std::chrono::nanoseconds(unix_time).count();
  }
}

void Timeline::add(const Span& span) {
  if (span.step < options_.from || span.step > options_.to) return;
  const std::lock_guard lock(mutex_);
  if (room()) spans_.push_back(span);
}

void Timeline::add(Point point) {
  point.step = step_;
  point.time = Clock::now();
  if (point.step < options_.from || point.step > options_.to || !std::isfinite(point.value)) return;
  const std::lock_guard lock(mutex_);
  if (room()) points_.push_back(point);
}

bool Timeline::room() {
  if (spans_.size() + points_.size() < options_.most) return true;
  ++dropped_;
  return false;
}

std::vector<Timeline::Span> Timeline::spans() const {
  const std::lock_guard lock(mutex_);
  return {spans_.begin(), spans_.end()};
}

std::size_t Timeline::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

void Timeline::write(const std::string& path) const {
  std::map<int, std::vector<Span>> tracks;  // by peer
  std::unique_lock lock(mutex_);
  for (const Span& span : spans_) tracks[span.peer].push_back(span);
  const std::deque<Point> points = points_;
  const std::size_t dropped = dropped_;
  lock.unlock();

  std::ofstream file(path, std::ios::binary);
  file << fmt::format(
      R"({{"displayTimeUnit":"ms","otherData":{{"format":"{}","rank":{},"workers":{},"start_unix_ns":{},)"
      R"("dropped":{}}},"traceEvents":[)",
      kFormat, rank_, workers_, start_unix_ns_, dropped);
  file << '\n' << label("process_name", rank_, kTrainingThread, fmt::format("worker {}", rank_));
  int tid = kTrainingThread;
  for (auto& [peer, spans] : tracks) {
    // If two spans begin together, the longer one contains the other.
    std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    const bool training = peer < 0;
    const std::vector<int> lanes = lanes_of(spans, training);
    const int last = tid + *std::max_element(lanes.begin(), lanes.end());
    const std::string name = training ? "training thread" : fmt::format("exchange with worker {}", peer);
    for (int lane = tid; lane <= last; ++lane) file << ",\n" << label("thread_name", rank_, lane, name);
    for (std::size_t i = 0; i < spans.size(); ++i)
      file << ",\n" << event(spans[i], start_, rank_, tid + lanes[i]);
    tid = last + 1;
  }
  for (const Point& point : points) file << ",\n" << event(point, start_, rank_);
  file << "\n]}\n";
  file.close();
  if (!file) throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
}

}  // namespace starling
