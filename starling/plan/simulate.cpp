#include "starling/plan/simulate.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/exchange/edge.h"
#include "starling/plan/events.h"
#include "starling/plan/links.h"
#include "starling/plan/recorded.h"
#include "starling/plan/round_traffic.h"
#include "starling/topology/schedules.h"

namespace starling {

namespace {

// Means of all workers.
struct Means {
  int per = 0;         // exchanges from one to the next; 0: there are none
  double seconds = 0;  // from when all have come to it
};

class GossipSimulation {
 public:
  GossipSimulation(const Network& network, const Work& work, const Schedule& schedule, Mixing mixing,
                   const Horizon& run, Means means = {})
      : network_(network),
        work_(work),
        mixing_(mixing),
        run_(run),
        means_(means),
        n_(static_cast<int>(network.host_of.size())),
        blocks_(static_cast<int>(work.block_bytes.size())),
        recorded_(recorded(work)),
        workers_(static_cast<std::size_t>(n_)),
        links_(network),
        slots_(static_cast<std::size_t>(n_) * blocks_ * depth_),
        ends_(n_, run) {
    for (const Graph& graph : schedule.rounds) rounds_.push_back(traffic_of(graph, network, work.groups));
    routes_ = connect(rounds_, network.host_of, links_);
    std::size_t states = 0, flows = 0;  // flows: maximum in a round in pairs
    for (RoundTraffic& round : rounds_) {
      round.first_state = states;
      states += round.groups.size() * static_cast<std::size_t>(blocks_);
      flows = std::max(flows, round.targets.size());
    }
    groups_.resize(states);
    // Event sources: a worker (it has updated a block), n + a connection (a message has left), and
    // after these a group (all have their shards).
    events_.emplace(workers_.size() + routes_.size() + states, 2 * workers_.size() + flows,
                    span_of(recorded_) * work.every, run.most_events);
    links_.report_to(*events_, n_);
  }

  Forecast result() {
    for (int i = 0; i < n_; ++i) begin_iteration(i, 0);
    const int connections = links_.connections();
    while (!events_->empty()) {
      const EventQueue::Event event = events_->pop();
      now_ = event.time;
      if (event.source < n_) {
        updated(event.source);
      } else if (event.source < n_ + connections) {
        sent(event.source - n_);
      } else {
        send_means(event.source - n_ - connections);
      }
    }
    Forecast outcome = ends_.forecast();
    for (double* const seconds : {&outcome.step, &outcome.low, &outcome.high}) *seconds /= work_.every;
    const double counted = static_cast<double>(n_) * (run_.iterations - run_.warm_up) * work_.every;
    outcome.own = own_ / counted;
    outcome.waited = waited_ / counted;
    if (means_.per > 0) outcome.means = means_.seconds / (means_.per * work_.every);
    outcome.busiest = links_.busiest();
    outcome.busiest.seconds /= static_cast<double>(run_.iterations) * work_.every;
    if (outcome.busiest.host < 0) outcome.late = late_ / counted;
    return outcome;
  }
  // After result(): when the last worker has ended.
  double end() const { return std::ranges::max_element(workers_, {}, &Worker::clock)->clock; }

 private:
  struct alignas(64) Worker {
    double clock = 0;      // the time up to which its work is known
    int iteration = 0;     // the current one
    int block = 0;         // the next one to update, or, inside, to wait for
    bool updating = true;  // inside: false when all blocks are sent
    bool waiting = false;  // for the exchange of `block`
    std::size_t sample = 0;
    // The blocks of this iteration below this one may be sent, if they wait for both ends. 0 while
    // blocks of the last iteration are in flight.
    int released = 0;
    // For even and odd rounds: the number of these blocks in flight, of the worker itself, its
    // neighbours and its groups.
    int moving[2] = {0, 0};
  };

  // The exchange of one block of one worker in one round.
  struct Slot {
    int round = -1;    // counted from 0; -1: free
    int missing = 0;   // unfinished transfers to and from neighbours
    double ready = 0;  // end of the last one
  };

  enum class Phase { ready, parts, means };
  struct GroupState {  // of a group and block: one exchange at a time
    int count = 0;     // members that have finished this phase
    double time = 0;   // end of the last one
    Phase phase = Phase::ready;
    int round = 0;
  };

  const RoundTraffic& traffic(int round) const {
    return rounds_[static_cast<std::uint32_t>(round) % static_cast<std::uint32_t>(rounds_.size())];
  }

  // --- a worker ---

  void begin_iteration(int i, double time) {
    Worker& worker = workers_[i];
    const Recorded& own = recorded_[static_cast<std::size_t>(i) % recorded_.size()];
    const double work = local_steps(i, own) + sampled(i, own, work_.every - 1);
    worker.clock = time + work;
    if (worker.iteration >= run_.warm_up) own_ += work;
    worker.block = 0;
    worker.released = 0;
    worker.updating = true;
    go_on(i);
  }

  // Draws the recorded iteration of step `step` of those that end with the worker's next exchange.
  // Returns the time until its updates.
  double sampled(int i, const Recorded& own, int step) {
    Worker& worker = workers_[i];
    worker.sample = drawn_iteration(run_, i, worker.iteration * work_.every + step, own.count);
    return own.until_step(worker.sample);
  }

  // The time of the steps before the one that exchanges.
  double local_steps(int i, const Recorded& own) {
    if (own.count == 1) return (work_.every - 1) * own.whole.front();
    double work = 0;
    for (int step = 0; step + 1 < work_.every; ++step) {
      sampled(i, own, step);
      work += own.whole[workers_[i].sample];
    }
    return work;
  }

  void update_block(int i) {
    Worker& worker = workers_[i];
    const Recorded& own = recorded_[static_cast<std::size_t>(i) % recorded_.size()];
    const double work = own.update[worker.sample * own.blocks + static_cast<std::size_t>(worker.block)];
    worker.clock += work;
    if (worker.iteration >= run_.warm_up) own_ += work;
    events_->push(worker.clock, i);
  }

  // Runs up to its next update, or to an unfinished exchange.
  void go_on(int i) {
    Worker& worker = workers_[i];
    if (mixing_ == Mixing::ahead) {
      if (worker.iteration > 0 && !finished(i, worker.iteration - 1)) return;
      return update_block(i);
    }
    if (worker.updating) return update_block(i);
    for (; worker.block < blocks_; ++worker.block) {
      if (!finished(i, worker.iteration)) return;
    }
    end_iteration(i);
  }

  // Whether the exchange of the worker's block in that round is over. If so, the clock moves past
  // it.
  bool finished(int i, int round) {
    Worker& worker = workers_[i];
    Slot& slot = slot_of(i, worker.block, round);
    worker.waiting = slot.missing > 0;
    if (worker.waiting) return false;
    if (slot.ready > worker.clock) {
      if (worker.iteration >= run_.warm_up) {
        const double waited = slot.ready - worker.clock;
        waited_ += waited;
        late_ += std::max(0.0, waited - inside_seconds(worker.block));
      }
      worker.clock = slot.ready;
    }
    slot.round = -1;
    return true;
  }

  // The time of an exchange within a host; for a group there and back.
  double inside_seconds(int block) const {
    return 2 * (network_.inside_latency + work_.block_bytes[block] / network_.inside_rate);
  }

  void updated(int i) {
    Worker& worker = workers_[i];
    launch(i, worker.block, worker.iteration);
    ++worker.block;
    release(i);
    if (worker.block < blocks_) return go_on(i);
    if (mixing_ == Mixing::ahead) return end_iteration(i);
    worker.updating = false;
    worker.block = 0;
    go_on(i);
  }

  void end_iteration(int i) {
    const Worker& worker = workers_[i];
    if (means_.per == 0 || (worker.iteration + 1) % means_.per != 0) return next_iteration(i, worker.clock);
    if (++at_mean_ < n_) return;
    at_mean_ = 0;
    const double all_there = end(), ends = all_there + means_.seconds;
    for (int j = 0; j < n_; ++j) {
      if (workers_[j].iteration >= run_.warm_up) {
        waited_ += ends - workers_[j].clock;
        late_ += all_there - workers_[j].clock;
      }
      next_iteration(j, ends);
    }
  }

  void next_iteration(int i, double time) {
    Worker& worker = workers_[i];
    worker.clock = time;
    ends_.add(i, worker.iteration, time);
    if (++worker.iteration < run_.iterations) begin_iteration(i, time);
  }

  // --- exchanges ---

  Slot& slot_of(int i, int block, int round) {
    for (;;) {
      Slot& slot = slots_[(static_cast<std::size_t>(i) * blocks_ + block) * depth_ + (round & (depth_ - 1))];
      if (slot.round == round) return slot;
      if (slot.round == -1) {
        const RoundTraffic& of = traffic(round);
        const int pairs = of.first[i + 1] - of.first[i] + of.sources[i];
        slot = {round, pairs + (of.group_of[i] >= 0 ? 1 : 0), 0};
        return slot;
      }
      deepen();  // a neighbour is further ahead than there is room for
    }
  }

  void deepen() {
    std::vector<Slot> wider(slots_.size() * 2);
    for (std::size_t at = 0; at < slots_.size(); ++at) {
      if (slots_[at].round == -1) continue;
      wider[at / depth_ * depth_ * 2 + (slots_[at].round & (2 * depth_ - 1))] = slots_[at];
    }
    slots_ = std::move(wider);
    depth_ *= 2;
  }

  void exchanged(int i, int block, int round, double time) {
    Slot& slot = slot_of(i, block, round);
    slot.ready = std::max(slot.ready, time);
    if (--slot.missing > 0) return;
    Worker& worker = workers_[i];
    const int awaited = mixing_ == Mixing::ahead ? worker.iteration - 1 : worker.iteration;
    if (worker.waiting && worker.block == block && awaited == round) go_on(i);
  }

  void launch(int i, int block, int round) {
    const RoundTraffic& of = traffic(round);
    if (of.group_of[i] >= 0 && !waits(block)) {
      GroupState& state = groups_[state_of(of, of.group_of[i], block)];
      if (state.count == 0) state = {0, 0, Phase::parts, round};
      give_to_group(i, of.group_of[i], block, round, work_.block_bytes[block]);
    }
    const double bytes = work_.block_bytes[block];
    for (int k = of.first[i]; k < of.first[i + 1]; ++k) {
      const int j = of.targets[k];
      if (network_.host_of[i] == network_.host_of[j]) {
        const double time = now_ + network_.inside_latency + bytes / network_.inside_rate;
        exchanged(j, block, round, time);
        exchanged(i, block, round, time);
      } else if (of.back[k] < 0 || !waits(block)) {
        send(of.connections[k], {.block = block, .round = round, .bytes = bytes});
      }
    }
  }

  // Whether the block leaves only when both ends, or all of a group, have theirs.
  bool waits(int block) const { return work_.block_bytes[block] > static_cast<double>(kSentAtOnce); }

  // Sends the held-back blocks that this worker has launched in this iteration.
  void release(int i) {
    Worker& worker = workers_[i];
    const int launched = worker.updating ? worker.block : blocks_;
    const int round = worker.iteration;
    const bool one_group = rounds_.size() == 1 && rounds_.front().group_of[i] >= 0;
    if (worker.moving[(round + 1) & 1] > 0 && !one_group) return;
    const RoundTraffic& of = traffic(round);
    for (; worker.released < launched; ++worker.released) {
      const int block = worker.released;
      if (!waits(block)) continue;
      if (of.group_of[i] >= 0) ready_in_group(of.group_of[i], block, round);
      const double bytes = work_.block_bytes[block];
      for (int k = of.first[i]; k < of.first[i + 1]; ++k) {
        const int j = of.targets[k];
        if (of.connections[k] < 0 || of.back[k] < 0 || !released(j, block, round)) continue;
        for (const int c : {of.connections[k], of.back[k]})
          send(c, {.block = block, .round = round, .bytes = bytes, .both = true});
        for (const int end : {i, j}) workers_[end].moving[round & 1] += 2;
      }
    }
  }

  bool released(int i, int block, int round) const {
    const Worker& worker = workers_[i];
    return worker.iteration > round || (worker.iteration == round && worker.released > block);
  }

  // --- groups ---

  std::size_t state_of(const RoundTraffic& of, int group, int block) const {
    return of.first_state + static_cast<std::size_t>(group) * blocks_ + block;
  }

  void ready_in_group(int group, int block, int round) {
    const std::vector<int>& members = traffic(round).groups[group];
    GroupState& state = groups_[state_of(traffic(round), group, block)];
    if (++state.count < static_cast<int>(members.size())) return;
    state = {0, now_, Phase::parts, round};
    for (int i : members) {
      ++workers_[i].moving[round & 1];
      give_to_group(i, group, block, round, work_.block_bytes[block]);
    }
  }

  // A member's shards for all the others, or the mean of its own shard, to other hosts and inside
  // at once.
  void give_to_group(int i, int group, int block, int round, double bytes) {
    const std::vector<int>& members = traffic(round).groups[group];
    int inside = 0;
    for (int j : members) inside += network_.host_of[j] == network_.host_of[i];
    const double shard = bytes / static_cast<double>(members.size());
    const auto outside = static_cast<double>(members.size() - inside);
    if (outside > 0)
      return send(traffic(round).to_group[i], {.block = block, .round = round, .bytes = shard * outside});
    through(group, block, round,
            now_ + network_.inside_latency + shard * (inside - 1) / network_.inside_rate);
  }

  void through(int group, int block, int round, double time) {
    const RoundTraffic& of = traffic(round);
    const std::size_t at = state_of(of, group, block);
    GroupState& state = groups_[at];
    state.time = std::max(state.time, time);
    const std::vector<int>& members = of.groups[group];
    if (++state.count < static_cast<int>(members.size())) return;
    if (state.phase == Phase::parts) {
      events_->push(state.time, n_ + static_cast<int>(routes_.size() + at));
      return;
    }
    const double done = state.time + latency_in(of, members);
    state = {};
    const bool counted = waits(block);
    for (int i : members) workers_[i].moving[round & 1] -= counted;
    for (int i : members) exchanged(i, block, round, done);
    for (int i : members) release(i);
  }

  double latency_in(const RoundTraffic& of, const std::vector<int>& members) const {
    double most = network_.inside_latency;
    for (int i : members) {
      if (of.to_group[i] >= 0) most = std::max(most, links_.latency(of.to_group[i]));
    }
    return most;
  }

  void send_means(int at) {
    GroupState& state = groups_[at];
    const int round = state.round;
    const RoundTraffic& of = traffic(round);
    const int within = at - static_cast<int>(of.first_state), group = within / blocks_,
              block = within % blocks_;
    state = {0, now_, Phase::means, round};
    for (int i : of.groups[group]) give_to_group(i, group, block, round, work_.mean_bytes[block]);
  }

  // --- connections ---

  void send(int c, Links::Message message) {
    message.share = traffic(message.round).share[routes_[c].from];
    links_.send(c, message, now_);
  }

  // The message on this connection has left.
  void sent(int c) {
    const Links::Message message = links_.sent(c, now_);
    const auto [from, to] = routes_[c];
    const double latency = links_.latency(c), time = now_ + latency;
    if (to < 0) return through(-1 - to, message.block, message.round, time);
    if (message.both) {
      for (const int end : {from, to}) --workers_[end].moving[message.round & 1];
    }
    exchanged(to, message.block, message.round, time + latency);
    exchanged(from, message.block, message.round, time + latency);
    if (message.both) {
      for (const int end : {from, to}) release(end);
    }
  }

  const Network& network_;
  const Work& work_;
  const Mixing mixing_;
  const Horizon run_;
  const Means means_;
  const int n_, blocks_;
  int depth_ = 2;  // rounds for which a block has slots: a power of two
  std::vector<Recorded> recorded_;
  std::vector<RoundTraffic> rounds_;
  std::vector<Worker> workers_;
  Links links_;
  std::vector<Route> routes_;  // by connection
  std::vector<Slot> slots_;
  std::vector<GroupState> groups_;
  std::optional<EventQueue> events_;
  Ends ends_;
  double now_ = 0, own_ = 0, waited_ = 0, late_ = 0;
  int at_mean_ = 0;  // workers that have come to it
};

// A multiple of `period`, at least `iterations`.
int whole_periods(int iterations, int period) { return (iterations + period - 1) / period * period; }

}  // namespace

double mean_seconds(const Network& network, const Work& work) {
  const auto n = static_cast<int>(network.host_of.size());
  if (n == 1) return 0;
  const Schedule rounds = make_schedule("base-2", n);
  const Work mean{.block_bytes = {work.model_bytes},
                  .mean_bytes = {work.model_bytes},
                  .compute = {{.data_wait = {0}, .forward = {0}, .backward = {{0}}, .update = {{0}}}}};
  GossipSimulation simulation(network, mean, rounds, Mixing::inside,
                              {.iterations = static_cast<int>(rounds.rounds.size()), .warm_up = 0});
  simulation.result();
  double latency = network.inside_latency;
  if (network.hosts.size() > 1) latency = std::max(latency, network.latency);
  for (const HostLink& link : network.links) latency = std::max(latency, link.latency);
  return simulation.end() + 2 * latency;
}

Forecast simulate(const Network& network, const Work& work, const Schedule& schedule, Mixing mixing,
                  const Horizon& run) {
  check_fits(network, work, run);
  if (schedule.workers() != static_cast<int>(network.host_of.size())) {
    throw UsageError(fmt::format("simulate: the schedule is for {} workers, and there are {}",
                                 schedule.workers(), network.host_of.size()));
  }
  if (static_cast<double>(run.iterations) * schedule.workers() * work.every >
      static_cast<double>(run.most_events))
    refuse_more_than(run.most_events);
  if (work.mean_every == 0) return GossipSimulation(network, work, schedule, mixing, run).result();
  const Means means{work.mean_every / work.every, mean_seconds(network, work)};
  const int counted = run.iterations - run.warm_up;
  if (means.per > counted) {
    Forecast outcome = GossipSimulation(network, work, schedule, mixing, run).result();
    for (double* const seconds : {&outcome.step, &outcome.waited, &outcome.means})
      *seconds += means.seconds / work.mean_every;
    return outcome;
  }
  Horizon whole = run;
  whole.warm_up = whole_periods(run.warm_up, means.per);
  whole.iterations = whole.warm_up + whole_periods(counted, means.per);
  return GossipSimulation(network, work, schedule, mixing, whole, means).result();
}

}  // namespace starling
