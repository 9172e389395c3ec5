#include "cli/planned_world.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/optim/options.h"
#include "starling/optim/sent_size.h"
#include "starling/plan/all_reduce.h"
#include "starling/plan/extrapolate.h"
#include "starling/plan/schedules.h"
#include "starling/train/planned_scheme.h"

namespace starling::cli {

namespace {

constexpr double kLinkBound = 0.9;  // share of a step for which an interface is busy
constexpr double kDay = 86'400;
constexpr double kHosts = 1000;             // base of the number of failing hosts per day
constexpr double kLeastBlock = 256 * 1024;  // bytes, as in optim/blocks.cpp
constexpr double kMostBlocks = 2000;        // largest model to be simulated in other blocks
const std::vector<std::int64_t> kBlockBytes = {1 << 20, 5 << 20, 25 << 20};

// This host's workers alone, which make more passes in proportion, and average in memory.
Forecast one_host(const Profile& profile, const Host& host, int n, const Horizon& run) {
  const int here = static_cast<int>(host.workers.size());
  Work work = work_of(profile);
  work.compute.clear();
  for (const int worker : host.workers) {
    Compute& compute = work.compute.emplace_back(profile.compute[static_cast<std::size_t>(worker)]);
    for (std::size_t t = 0; t < compute.forward.size(); ++t) {
      double pass = compute.data_wait[t] + compute.forward[t];
      for (const auto& block : compute.backward) pass += block[t];
      compute.forward[t] += pass * (static_cast<double>(n) / here - 1);
    }
  }
  Network network = network_of(profile);
  network.host_of.assign(static_cast<std::size_t>(here), 0);
  return simulate_all_reduce(network, work, run);
}

Forecast fastest_host(const Profile& profile, int n, const Horizon& run) {
  std::optional<Forecast> fastest;
  for (const Host& host : profile.hosts) {
    const Forecast outcome = one_host(profile, host, n, run);
    if (!fastest || outcome.step < fastest->step) fastest = outcome;
  }
  return *fastest;
}

int most_neighbours(const Schedule& schedule) {
  std::size_t most = 0;
  for (const Graph& graph : schedule.rounds) {
    for (const auto& neighbours : graph.neighbours) most = std::max(most, neighbours.size());
  }
  return static_cast<int>(most);
}

// The steps of one scheme with all its schedules and wires.
class PlannedSteps {
 public:
  PlannedSteps(const PlannedWorld& world, const Profile& profile, const Horizon& run)
      : world_(world), profile_(profile), run_(run) {}

  Options options(const std::string& topology, Wire wire) const {
    Options all = world_.planned;
    all.topology = topology;
    all.wire = wire;
    all.workers_per_node = world_.workers_per_host;
    return all;
  }
  Schedule schedule(const Options& options) const { return schedule_of(options, world_.n, 1); }
  void check(const Options& options) const { check_options(options, world_.n, 1, false); }

  Forecast step(const Profile& profile, const Options& options) const {
    return simulate(world_.network, profile, options, schedule(options), typical_block(), run_);
  }
  Forecast step(const Options& options) const { return step(profile_, options); }

 private:
  const PlannedWorld& world_;
  const Profile& profile_;
  const Horizon& run_;
};

void compare_block_sizes(PlannedWorld& world, const Profile& profile, const PlannedSteps& steps) {
  const Candidate& best = world.recommended();
  const double total = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  // The blocks that the optimizer makes for Options::block_bytes.
  const auto made = [&](std::int64_t bytes) {
    return std::max(kLeastBlock, std::min(static_cast<double>(bytes), total / 8));
  };
  double fastest = std::numeric_limits<double>::infinity();
  for (auto next = kBlockBytes.begin(); next != kBlockBytes.end();) {
    const std::int64_t bytes = *next++;
    const double block = made(bytes);
    if ((next != kBlockBytes.end() && made(*next) == block) || total / block > kMostBlocks) continue;
    world.sizes[bytes] = steps.step(in_blocks_of(profile, block), steps.options(best.schedule, best.wire));
    fastest = std::min(fastest, world.sizes[bytes].step);
  }
  for (const auto& [bytes, outcome] : world.sizes) {
    if (outcome.step <= fastest * (1 + kAsGood)) world.block_bytes = bytes;
  }
}

// The rows of all schedules and wires that the scheme takes. Throws the first refusal if there are
// none, or if the question names a schedule or a wire that then has no row.
std::vector<Candidate> planned_rows(const PlannedWorld& world, const Question& question,
                                    const PlannedSteps& steps) {
  const SchemeInfo& info = scheme_of(world.planned);
  std::vector<std::string> schedules = question.schedules;
  if (!info.uses_topology()) {
    if (!schedules.empty())
      throw UsageError(fmt::format("--topologies: scheme \"{}\" has rounds of its own", info.name));
    schedules = {std::string(info.name)};
  } else if (schedules.empty()) {
    schedules = planned_schedules(world.n, world.workers_per_host, hosts_are_alike(world.network.host_of));
  }
  const std::vector<Wire>& wires = question.wires.empty() ? planned_wires() : question.wires;
  std::vector<Candidate> rows;
  std::vector<Candidate> refused;  // without a forecast
  std::vector<std::string> why;
  for (const std::string& schedule : schedules) {
    for (const Wire wire : wires) {
      const Options options = steps.options(schedule, wire);
      try {
        steps.check(options);
      } catch (const UsageError& error) {
        refused.push_back({schedule, wire, {}});
        why.emplace_back(error.what());
        continue;
      }
      if (is_planned(schedule, wire)) rows.push_back({schedule, wire, steps.step(options)});
    }
  }
  // Throws if a value that the question names has no row, since the scheme refuses it.
  const auto need = [&](const auto& named, auto member) {
    for (const auto& value : named) {
      const auto first = std::ranges::find(refused, value, member);
      if (first != refused.end() && std::ranges::count(rows, value, member) == 0)
        throw UsageError(why[static_cast<std::size_t>(first - refused.begin())]);
    }
  };
  need(question.schedules, &Candidate::schedule);
  need(question.wires, &Candidate::wire);
  if (rows.empty() && !why.empty()) throw UsageError(why.front());
  if (rows.empty())
    throw UsageError(
        "--topologies complete: it is not planned over modular wires alone, because it sends n - 1 models a "
        "step: add another topology or wire");
  return rows;
}

void add_alternatives(PlannedWorld& world, const Profile& profile, const Question& question,
                      const PlannedSteps& steps) {
  const Candidate& best = world.recommended();
  if (world.planned.scheme.name != scheme_planned_as(Mixing::ahead)) return;
  Options inside = steps.options(best.schedule, best.wire);
  inside.scheme = scheme_planned_as(Mixing::inside);
  world.inside = steps.step(inside);
  const Options& planned = world.planned;
  const Schedule schedule = steps.schedule(inside);
  if (planned.every > 1 || planned.mean_every > 0 || planned.one_in > 1 || world.n == 1 ||
      !std::ranges::all_of(schedule.rounds, &Graph::symmetric))
    return;
  for (const Wire wire : question.wires.empty() ? planned_wires() : question.wires) {
    const Work work = work_on(profile, steps.options(best.schedule, wire), schedule, typical_block());
    world.asynchronous[wire] =
        simulate_asynchronous(world.network, work, pair_rates(schedule, 1), question.run);
  }
}

std::string band_text(const Banded& value, double times, int digits) {
  const std::string low = fmt::format("{:.{}f}", value.low * times, digits),
                    high = fmt::format("{:.{}f}", value.high * times, digits);
  return low == high ? fmt::format("{:.{}f}", value.mean * times, digits) : low + " to " + high;
}

}  // namespace

const std::vector<Wire>& planned_wires() {
  static const std::vector<Wire> all = {Wire::fp32, Wire::bf16, Wire::int8};
  return all;
}

PlannedWorld planned_world(const Profile& profile, int n, const Question& question) {
  const Horizon& run = question.run;
  PlannedWorld world;
  world.n = n;
  world.planned = question.options;
  world.mixing = mixing_of(world.planned.scheme);
  world.measured = n == profile.workers();
  world.network = network_of(profile, n);
  world.workers_per_host = workers_per_host(profile);
  world.all_reduces = all_reduces_of(profile, world.network);
  world.all_reduce = simulate_all_reduce(world.network, work_of(profile), run, world.all_reduces);
  if (world.network.hosts.size() > 1) {
    if (profile.all_reduce.empty())
      world.assumed.push_back(
          "Assumed: all-reduce takes the time of its formula, because none was measured.");
    if (profile.shapes.empty())
      world.assumed.push_back(
          "Assumed: exchanges with several peers at once reach the full rate of the interfaces, because none "
          "were measured.");
  }
  if (depends_on_shapes(world.planned))
    world.assumed.push_back(
        fmt::format("Assumed: the parameters are matrices of {0} x {0}, because a profile holds no shapes.",
                    kTypicalSide));
  const PlannedSteps steps(world, profile, run);
  world.rows = planned_rows(world, question, steps);
  world.best = static_cast<std::size_t>(&starling::recommended(world.rows) - world.rows.data());
  add_alternatives(world, profile, question, steps);
  const SchemeTraits& traits = scheme_of(world.planned).traits;
  if (traits.edges != EdgeKind::none && traits.wire_values == nullptr)
    compare_block_sizes(world, profile, steps);
  if (n > world.workers_per_host) world.one_host = fastest_host(profile, n, run);
  const Candidate& best = world.recommended();
  world.failures = question.failures;
  world.lost_to_restarts = lost_to_restarts(world.failures, static_cast<int>(world.network.hosts.size()));
  world.lost_to_absence = lost_to_absence(
      world.failures, most_neighbours(steps.schedule(steps.options(best.schedule, best.wire))));
  return world;
}

Banded efficiency(const Forecast& outcome) {
  return {outcome.own / outcome.step, outcome.own / outcome.high, std::min(1.0, outcome.own / outcome.low)};
}

Banded speed_up(const Forecast& outcome, const PlannedWorld& world) {
  const double step = world.all_reduce.step;
  return {step / outcome.step, step / outcome.high, step / outcome.low};
}

std::string efficiency_text(const Forecast& outcome) { return band_text(efficiency(outcome), 100, 0) + " %"; }

std::string speed_up_text(const Forecast& outcome, const PlannedWorld& world) {
  return band_text(speed_up(outcome, world), 1, 2);
}

std::string bottleneck(const Forecast& outcome, const Network& network, Mixing mixing) {
  if (outcome.waited < kAsGood * outcome.step) return "compute";
  if (outcome.means > outcome.waited / 2) return "the exact means";
  const Busiest& busiest = outcome.busiest;
  if (busiest.host < 0) {
    if (outcome.late > outcome.waited / 2) return "the slowest workers";
    return network.hosts.size() == 1 ? fmt::format("the memory of {}", network.hosts[0].name) : "the network";
  }
  // With Mixing::inside the computation waits while the link is busy, and the link waits during the
  // computation.
  const double at_most = mixing == Mixing::inside ? outcome.waited : outcome.step;
  if (busiest.seconds < kLinkBound * at_most) return "the slowest workers";
  const std::string& name = network.hosts[busiest.host].name;
  return busiest.to < 0 ? fmt::format("the interface of {}", name)
                        : fmt::format("the link from {} to {}", name, network.hosts[busiest.to].name);
}

bool all_reduce_is_as_good(const PlannedWorld& world) {
  return world.all_reduce.step <= (1 + kAsGood) * world.recommended().outcome.step;
}

std::string recommended_scheme(const PlannedWorld& world) {
  const bool inside = world.inside && world.inside->step <= (1 + kAsGood) * world.recommended().outcome.step;
  return inside ? scheme_planned_as(Mixing::inside) : world.planned.scheme.name;
}

std::vector<std::string> advice(const PlannedWorld& world) {
  const Candidate& best = world.recommended();
  std::vector<std::string> lines;
  lines.push_back(
      fmt::format("Recommended: {} over {}, {:.2f} ms, limited by {}. Among the steps within {:.0f} % of the "
                  "fastest it has the widest wire, and is the first in this list.",
                  best.schedule, name_of(best.wire), best.outcome.step * 1e3,
                  bottleneck(best.outcome, world.network, world.mixing), kAsGood * 100));
  if (all_reduce_is_as_good(world))
    lines.push_back(
        fmt::format("All-reduce takes {:.2f} ms, no longer than that, and keeps all parameters equal.",
                    world.all_reduce.step * 1e3));
  if (world.inside) {
    const std::string inside = scheme_planned_as(Mixing::inside), ahead = world.planned.scheme.name;
    lines.push_back(
        recommended_scheme(world) == inside
            ? fmt::format("Scheme {}: it waits for its exchange within the step, which takes {:.2f} ms, no "
                          "longer than with {}. It mixes parameters that are one step younger.",
                          inside, world.inside->step * 1e3, ahead)
            : fmt::format("Scheme {}: {}, which waits for its exchange within the step, takes {:.2f} ms.",
                          ahead, inside, world.inside->step * 1e3));
  }
  std::vector<std::string> rates;
  for (const auto& [wire, outcome] : world.asynchronous)
    rates.push_back(fmt::format("{:.2f} over {}", outcome.rate, name_of(wire)));
  if (!rates.empty()) {
    const bool reached =
        std::ranges::all_of(world.asynchronous, [](const auto& one) { return one.second.rate > 0.9; });
    lines.push_back(
        fmt::format("Asynchronous gossip on its graph, such as a2cid2, does not wait for other workers: a "
                    "step takes {:.2f} ms. At rate 1 the network carries, per gradient, {} averagings.{}",
                    world.asynchronous.begin()->second.step.step * 1e3, fmt::join(rates, ", "),
                    reached ? "" : " A higher rate than it carries gains nothing: set rate to that."));
  }
  std::vector<std::string> sizes;
  for (const auto& [bytes, outcome] : world.sizes)
    sizes.push_back(fmt::format("{} MB {:.2f} ms", bytes >> 20, outcome.step * 1e3));
  if (sizes.size() > 1)
    lines.push_back(fmt::format(
        "Blocks of {} MB are the largest ones that are as fast as any: {}; the recorded blocks {:.2f} ms.",
        world.block_bytes >> 20, fmt::join(sizes, ", "), best.outcome.step * 1e3));
  if (world.one_host) {
    const double times = world.one_host->step / best.outcome.step;
    lines.push_back(
        fmt::format("One host alone takes {:.2f} ms for the same number of samples, {:.2f} times as long{}.",
                    world.one_host->step * 1e3, times, times > 1 ? "" : ": more hosts are not worth it"));
  }
  lines.push_back(fmt::format(
      "Failures, {:g} of {:g} hosts per day: {:.2g} % of the time is lost if all restart, {:.2g} % if the "
      "others go on and the host is back after {:g} s (without the restart that brings it back).",
      world.failures.rate * kHosts * kDay, kHosts, world.lost_to_restarts * 100, world.lost_to_absence * 100,
      world.failures.away));
  lines.insert(lines.end(), world.assumed.begin(), world.assumed.end());
  return lines;
}

double failures_a_second(double of_1000_in_a_day) { return of_1000_in_a_day / kHosts / kDay; }

}  // namespace starling::cli
