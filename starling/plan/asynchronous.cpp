#include "starling/plan/asynchronous.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <numeric>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"
#include "starling/gossip/pairing.h"
#include "starling/plan/events.h"
#include "starling/plan/links.h"
#include "starling/plan/recorded.h"
#include "starling/transport/frame.h"

namespace starling {

namespace {

// The rest of the chunk that is on the link, in the mean over the time of all blocks.
double in_front(const std::vector<double>& blocks) {
  double squares = 0, all = 0;
  for (const double bytes : blocks) {
    const double last = std::fmod(bytes, Frame::kMaxPayload);
    squares += (bytes - last) * Frame::kMaxPayload + last * last;
    all += bytes;
  }
  return squares / all / 2;
}

class AsynchronousSimulation {
 public:
  AsynchronousSimulation(const Network& network, const Work& work, const PairRates& rates, const Horizon& run)
      : network_(network),
        rates_(rates),
        run_(run),
        n_(rates.workers()),
        bytes_(std::accumulate(work.block_bytes.begin(), work.block_bytes.end(), 0.0)),
        chunk_(in_front(work.block_bytes)),
        recorded_(recorded(work)),
        workers_(static_cast<std::size_t>(n_)),
        links_(network),
        events_(3 * workers_.size(), 2 * workers_.size(), span_of(recorded_), run.most_events),
        ends_(n_, run) {
    // Event sources: below n a worker's clock or the end of its gradient, n + worker the next step
    // of its averaging, 2 n + worker its data on the link.
    for (int i = 0; i < n_; ++i) links_.connect(host(i), host(i));
    links_.report_to(events_, 2 * n_);
  }

  AsynchronousForecast result() {
    for (int i = 0; i < n_; ++i) begin_gradient(i, 0);
    while (training_ > 0) {
      const EventQueue::Event event = events_.pop();
      now_ = event.time;
      const int i = event.source % n_;
      if (event.source < n_) {
        clock(i);
      } else if (event.source < 2 * n_) {
        go_on(i);
      } else {
        sent(i);
      }
    }
    AsynchronousForecast outcome{.step = ends_.forecast()};
    outcome.step.own = outcome.step.step;
    outcome.step.busiest = links_.busiest();
    outcome.step.busiest.seconds *= outcome.step.step / now_;
    const double gradients = static_cast<double>(n_) * (run_.iterations - run_.warm_up);
    outcome.rate = static_cast<double>(averaged_) / gradients;
    if (averaged_ > 0) outcome.taken = taken_ / static_cast<double>(averaged_);
    return outcome;
  }

 private:
  enum class State {
    free,
    resting,  // it was refused: it does not ask, but may be asked
    asking,
    answered,  // it said yes; the answer is on its way back
    averaging,
    ending  // the acknowledgement of the last block is on its way
  };
  struct Worker {
    int gradient = 0;
    double begun = 0, takes = 0;  // this gradient
    double until_next = -1;       // gradients from `begun` until an averaging is due
    std::deque<int> due;
    State state = State::free;
    int with = 0;          // the peer that it asks, or averages with
    double asked = 0;      // the time of the request for this averaging
    bool sent = false;     // all data of this averaging has left
    int refusals = 0;      // in a row
    double answered = -1;  // arrival time of the refusal; below 0: not known
    double rests = 0;      // it sends no request before this time
    std::uint64_t drawn = 0;
  };

  int host(int i) const { return network_.host_of[static_cast<std::size_t>(i)]; }
  Worker& worker(int i) { return workers_[static_cast<std::size_t>(i)]; }
  bool near(int i) { return host(i) == host(worker(i).with); }
  double latency(int i) { return near(i) ? network_.inside_latency : links_.latency(i); }
  bool counts(const Worker& w) const { return w.gradient >= run_.warm_up && w.gradient < run_.iterations; }

  double dice(int i) {  // uniform in (0, 1]
    return uniform_of(random_bits({run_.seed, static_cast<std::uint64_t>(i), ++worker(i).drawn, 1})) +
           0x1p-53;
  }
  double until_next(int i) { return rates_.until_next(i, true, dice(i)); }

  // --- the clock ---

  void begin_gradient(int i, double time) {
    Worker& w = worker(i);
    const Recorded& own = recorded_[static_cast<std::size_t>(i) % recorded_.size()];
    const std::size_t k = drawn_iteration(run_, i, w.gradient, own.count);
    w.begun = time;
    w.takes = own.until_step(k);
    for (std::size_t b = 0; b < own.blocks; ++b) w.takes += own.update[k * own.blocks + b];
    if (w.until_next < 0)
      w.until_next = rates_.asks[static_cast<std::size_t>(i)].empty() ? HUGE_VAL : until_next(i);
    wait_for_clock(i);
  }

  void wait_for_clock(int i) {
    const Worker& w = worker(i);
    events_.push(w.begun + std::min(w.until_next, 1.0) * w.takes, i);
  }

  void clock(int i) {
    Worker& w = worker(i);
    if (w.until_next < 1) {
      if (w.due.size() < Pairing::kMostDue) w.due.push_back(rates_.whom(i, dice(i)));
      w.until_next += until_next(i);
      wait_for_clock(i);
      return ask(i);
    }
    w.until_next -= 1;
    if (w.gradient < run_.iterations) ends_.add(i, w.gradient, now_);
    if (++w.gradient == run_.iterations) --training_;
    begin_gradient(i, now_);
  }

  // --- pairing ---

  void ask(int i) {
    Worker& w = worker(i);
    if (w.state != State::free || w.due.empty()) return;
    w.state = State::asking;
    w.with = w.due.front();
    w.due.pop_front();
    w.asked = now_;
    w.answered = -1;
    links_.redirect(i, host(w.with));
    events_.push(now_ + latency(i), n_ + i);
  }

  // Continues a worker; its state determines its next event.
  void go_on(int i) {
    switch (worker(i).state) {
      case State::asking:
        if (worker(i).answered < 0) return asked(i, worker(i).with);
        return rest(i);
      case State::answered:
        worker(i).state = State::averaging;
        return send(i);
      default:  // resting, or ending
        worker(i).state = State::free;
        if (worker(i).rests <= now_) return ask(i);
        return rest(i);
    }
  }

  void rest(int i) {
    worker(i).state = State::resting;
    events_.push(worker(i).rests, n_ + i);
  }

  // The request of i has reached j.
  void asked(int i, int j) {
    Worker &w = worker(i), &other = worker(j);
    const bool both = other.state == State::asking && other.with == i && other.answered < 0;
    if (both && j < i) return;  // the lower rank's request counts, and is on its way
    const bool is_free = other.state == State::free || other.state == State::resting || both;
    if (!is_free) {
      const double rest = seconds(Pairing::rest({}, ++w.refusals, dice(i)));
      // The answer waits for the chunk that is on its way there.
      const bool sends = other.state == State::averaging || other.state == State::answered;
      const double chunk =
          near(i) || !sends ? 0 : chunk_ / network_.hosts[static_cast<std::size_t>(host(j))].send;
      w.due.push_front(j);
      w.answered = now_ + latency(i) + chunk;
      w.rests = w.answered + rest;
      return events_.push(w.answered, n_ + i);
    }
    if (both) other.due.push_front(i);
    if (other.state != State::free) events_.take_back(n_ + j);
    w.refusals = 0;
    w.state = State::answered;
    other.state = State::averaging;
    other.with = i;
    other.asked = w.asked;
    links_.redirect(j, host(i));
    w.sent = other.sent = false;
    events_.push(now_ + latency(i), n_ + i);
    send(j);
  }

  // --- an averaging ---

  void send(int i) {
    if (!near(i)) return links_.send(i, {.bytes = bytes_, .share = share_of(network_.shapes, 1)}, now_);
    arrives(i, now_ + bytes_ / network_.inside_rate);
  }

  void sent(int i) {
    links_.sent(i, now_);
    arrives(i, now_);
  }

  // The data of i has left by then. When both have sent, each has the other's a latency later, and
  // the acknowledgement after another latency.
  void arrives(int i, double time) {
    Worker &w = worker(i), &other = worker(w.with);
    w.sent = true;
    if (!other.sent) return;
    const double acknowledged = time + 2 * latency(i);
    for (const int end : {i, w.with}) {
      worker(end).state = State::ending;
      events_.push(acknowledged, n_ + end);
      if (!counts(worker(end))) continue;
      ++averaged_;
      taken_ += acknowledged - w.asked;
    }
  }

  const Network& network_;
  const PairRates& rates_;
  const Horizon run_;
  const int n_;
  const double bytes_, chunk_;
  std::vector<Recorded> recorded_;
  std::vector<Worker> workers_;
  Links links_;
  EventQueue events_;
  Ends ends_;
  int training_ = n_;
  double now_ = 0, taken_ = 0;
  std::uint64_t averaged_ = 0;
};

}  // namespace

AsynchronousForecast simulate_asynchronous(const Network& network, const Work& work, const PairRates& rates,
                                           const Horizon& run) {
  check_fits(network, work, run);
  if (rates.workers() != static_cast<int>(network.host_of.size())) {
    throw UsageError(fmt::format("simulate: the graph is for {} workers, and there are {}", rates.workers(),
                                 network.host_of.size()));
  }
  return AsynchronousSimulation(network, work, rates, run).result();
}

}  // namespace starling
