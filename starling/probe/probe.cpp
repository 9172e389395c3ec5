#include "starling/probe/probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <memory>

#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>

#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/host.h"
#include "starling/optim/gathering.h"
#include "starling/plan/schedules.h"
#include "starling/probe/evaluate.h"
#include "starling/probe/flows.h"
#include "starling/probe/tournament.h"
#include "starling/transport/c10d/collectives.h"
#include "starling/transport/c10d/process_group.h"

namespace starling {

namespace {

constexpr int kRoundTrips = 41;
constexpr double kLongest = 0.5;  // seconds of one stream
// Times that everything is measured between hosts, if time allows.
constexpr int kLeastTimes = 2, kMostTimes = 6;
// Rounds of the tournament: with more hosts not every pair is measured.
constexpr std::size_t kMostRounds = 64;
// Sizes in bytes, and seconds. After an all-reduce of this duration, larger sizes are extrapolated
// from the last two.
constexpr std::array<std::int64_t, 8> kAllReduced{1 << 16, 1 << 17, 1 << 18,  1 << 19,
                                                  1 << 20, 4 << 20, 12 << 20, 25 << 20};
constexpr double kLargeAllReduce = 0.3;
// Turns of so many seconds, and repetitions. The first ones after a pause differ from training,
// because TCP must find its pace again.
constexpr int kAllReduceTurns = 4, kLeastRepetitions = 4, kMostRepetitions = 10;
constexpr double kAllReduceTurn = 0.3;
constexpr std::size_t kAtOnce = 2;  // all-reduces in flight, one for each of Gloo's threads

// One measurement, of all workers at once.
struct Measurement {
  enum class Kind { latency, inside, one_flow, all_flows, exchanges };
  static constexpr const char* kTexts[] = {"latency", "rate inside hosts", "rate of links",
                                           "rate of interfaces", "exchanges"};  // by Kind
  Kind kind;
  FlowSet flows{};  // (from, to); for latency: (asker, asked)
  int peers = 0;    // for exchanges
};

using Kind = Measurement::Kind;

std::vector<Measurement> inside_hosts(const std::vector<Host>& hosts) {
  Measurement latency{Kind::latency}, rate{Kind::inside};
  for (const Host& host : hosts) {
    for (std::size_t place = 0; place + 1 < host.workers.size(); place += 2) {
      const int a = host.workers[place], b = host.workers[place + 1];
      latency.flows.emplace(a, b);
      rate.flows.insert({{a, b}, {b, a}});
    }
  }
  if (rate.flows.empty()) return {};
  return {latency, rate};
}

std::vector<Measurement> between_hosts(const std::vector<Host>& hosts) {
  std::vector<Measurement> all;
  for (const auto& pairs : tournament(static_cast<int>(hosts.size()))) {
    if (all.size() == 4 * kMostRounds) break;
    Measurement latency{Kind::latency}, there{Kind::one_flow}, back{Kind::one_flow}, full{Kind::all_flows};
    for (const auto& [a, b] : pairs) {
      const auto &of_a = hosts[a].workers, &of_b = hosts[b].workers;
      latency.flows.emplace(of_a[0], of_b[0]);
      there.flows.emplace(of_a[0], of_b[0]);
      back.flows.emplace(of_b[0], of_a[0]);
      for (std::size_t k = 0; k < std::max(of_a.size(), of_b.size()); ++k) {
        const int i = of_a[k % of_a.size()], j = of_b[k % of_b.size()];
        full.flows.insert({{i, j}, {j, i}});
      }
    }
    all.insert(all.end(), {latency, there, back, full});
  }
  return all;
}

std::vector<Measurement> exchanges(const std::vector<Host>& hosts, const std::vector<int>& host_of) {
  std::size_t most = 1;
  for (const Host& host : hosts) most = std::max(most, host.workers.size());
  std::vector<Measurement> all;
  for (const Exchanges& planned : planned_exchanges(host_of, static_cast<int>(most))) {
    Measurement& one = all.emplace_back(Measurement{.kind = Kind::exchanges, .peers = planned.peers});
    for (int i = 0; i < planned.graph.workers(); ++i) {
      for (const Neighbour& j : planned.graph.neighbours[i]) one.flows.emplace(j.rank, i);
    }
  }
  return all;
}

// This worker's part: its measurements, by flow.
std::map<std::pair<int, int>, double> measure(Flows& flows, const World& world,
                                              const Measurement& measurement, Duration duration) {
  std::map<std::pair<int, int>, double> mine;
  std::set<int> targets, sources;
  for (const auto& [from, to] : measurement.flows) {
    if (from == world.rank) targets.insert(to);
    if (to == world.rank) sources.insert(from);
  }
  if (measurement.kind == Kind::latency) {
    flows.meet();
    for (const int peer : targets) mine[{world.rank, peer}] = flows.latency(peer, kRoundTrips);
    return mine;
  }
  for (const auto& [source, rate] : flows.stream(targets, sources, duration))
    mine[{source, world.rank}] = rate;
  return mine;
}

// The slowest worker's time.
double slowest(Gathering& gathering, double seconds) {
  std::array<std::int64_t, 1> nanoseconds{std::max<std::int64_t>(1, std::llround(seconds * 1e9))};
  gathering.maximum(nanoseconds);
  return static_cast<double>(nanoseconds[0]) * 1e-9;
}

std::vector<AllReduceTime> measure_all_reduce(Gathering& gathering, const World& world) {
  const std::unique_ptr<Collectives> collectives = make_collectives(world, "probe");
  std::vector<AllReduceTime> times;
  for (const std::int64_t bytes : kAllReduced) {
    if (times.size() > 1 && times.back().seconds > kLargeAllReduce) break;
    std::array<at::Tensor, kAtOnce> tensors;
    for (at::Tensor& tensor : tensors) tensor = at::zeros({bytes / static_cast<std::int64_t>(sizeof(float))});
    const auto run = [&](int repetitions) {
      gathering.wait();
      const Time begin = Clock::now();
      std::deque<Collectives::Pending> under_way;
      for (int k = 0; k < repetitions; ++k) {
        if (under_way.size() == kAtOnce) {
          under_way.front().wait();
          under_way.pop_front();
        }
        under_way.push_back(collectives->all_reduce_sum(tensors[static_cast<std::size_t>(k) % kAtOnce]));
      }
      for (Collectives::Pending& last : under_way) last.wait();
      return slowest(gathering, seconds(Clock::now() - begin)) / repetitions;
    };
    const int repetitions =
        std::clamp(static_cast<int>(kAllReduceTurn / run(1)), kLeastRepetitions, kMostRepetitions);
    double best = std::numeric_limits<double>::infinity();
    for (int turn = 0; turn < kAllReduceTurns; ++turn) best = std::min(best, run(repetitions));
    times.push_back({static_cast<double>(bytes), best});
  }
  return times;
}

Measurements measurements(const std::vector<Host>& hosts, const std::vector<int>& host_of,
                          const std::vector<Measurement>& plan, const Measured& values) {
  Measurements all;
  all.hosts = hosts;
  for (std::size_t k = 0; k < plan.size(); ++k) {
    BetweenHosts links;  // with the total rate of all flows
    std::vector<MeasuredFlow> flows;
    for (const auto& [flow, value] : values[k]) {
      const std::pair link{host_of[flow.first], host_of[flow.second]};
      flows.push_back({flow.first, flow.second, value});
      if (plan[k].kind == Kind::inside) all.inside_rate.push_back(value);
      if (plan[k].kind != Kind::latency) {
        links[link] += value;
      } else if (link.first == link.second) {
        all.inside_latency.push_back(value);
      } else {
        const auto known = all.latency.find(link);
        const double least = known == all.latency.end() ? value : std::min(known->second, value);
        all.latency[link] = all.latency[{link.second, link.first}] = least;
      }
    }
    if (plan[k].kind == Kind::exchanges) all.exchanges.push_back({plan[k].peers, flows});
    if (plan[k].kind != Kind::one_flow && plan[k].kind != Kind::all_flows) continue;
    BetweenHosts& best = plan[k].kind == Kind::one_flow ? all.one_flow : all.all_flows;
    for (const auto& [link, rate] : links) best[link] = std::max(best[link], rate);
  }
  return all;
}

ProbeResult run(Flows& flows, Gathering& gathering, const World& world, const ProbeOptions& options) {
  const std::vector<Host> hosts =
      hosts_by_cards(gathering.texts(host_card(host_identity(), host_name(), world.address)));
  const std::vector<int> host_of = hosts_of_workers(hosts);
  std::vector<Measurement> plan;
  const auto add = [&](const std::vector<Measurement>& part) {
    plan.insert(plan.end(), part.begin(), part.end());
  };
  add(inside_hosts(hosts));
  const std::vector<Measurement> between = between_hosts(hosts);
  const double once = kLongest * static_cast<double>(between.size() + 1);
  const int times = std::clamp(static_cast<int>(options.seconds / once), kLeastTimes, kMostTimes);
  for (int k = 0; k < times; ++k) add(between);
  for (const Measurement& one : exchanges(hosts, host_of)) plan.insert(plan.end(), kLeastTimes, one);

  const double each = std::min(kLongest, options.seconds / static_cast<double>(plan.size()));
  const auto duration = of_seconds(each);
  Measured mine;
  std::vector<FlowSet> planned;
  for (std::size_t k = 0; k < plan.size(); ++k) {
    if (options.says)
      options.says(fmt::format("{} of {}: {}", k + 1, plan.size() + (options.all_reduce ? 1 : 0),
                               Measurement::kTexts[static_cast<std::size_t>(plan[k].kind)]));
    planned.push_back(plan[k].flows);
    // With many flows at once, each has few samples.
    mine.push_back(measure(flows, world, plan[k], plan[k].kind == Kind::exchanges ? 2 * duration : duration));
  }
  if (options.says && options.all_reduce)
    options.says(fmt::format("{0} of {0}: all-reduce", plan.size() + 1));
  Measurements all =
      measurements(hosts, host_of, plan, measured_by_all(planned, gathering.texts(to_text(mine))));
  if (options.all_reduce) all.all_reduce = measure_all_reduce(gathering, world);
  ProbeResult result{.network = network_profile(all), .bandwidths = {}, .remarks = {}};
  result.bandwidths = bandwidths(all, result.network);
  result.remarks = remarks(all, result.network);
  return result;
}

}  // namespace

ProbeResult probe(const World& world, const ProbeOptions& options) {
  if (world.size == 1)
    throw UsageError(
        "probe: one worker alone has no network: start several with --workers N, or with a launcher");
  Flows flows(world);
  try {
    Gathering gathering(world, "probe");
    return run(flows, gathering, world, options);
  } catch (const WorkerGone&) {
    throw;
  } catch (const Error&) {
    // A lost worker explains more than the failure that it caused, which may be seen a little
    // earlier.
    flows.check(std::chrono::seconds(1));
    throw;
  }
}

}  // namespace starling
