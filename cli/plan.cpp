// starling plan --profile profile.json: how long a step will take, with every schedule and wire and so many workers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/plan_report.h"
#include "cli/profiles.h"
#include "starling/checkpoint/file.h"
#include "starling/core/error.h"
#include "starling/kernels/wire.h"
#include "starling/plan/asynchronous.h"
#include "starling/plan/choose.h"
#include "starling/plan/failures.h"
#include "starling/plan/iteration.h"
#include "starling/plan/simulate.h"
#include "starling/topology/schedules.h"

namespace starling::cli {

namespace {

constexpr int kMostPlanned = 1024;
constexpr double kWorthIt = 0.5;    // of the throughput that more workers bring where nothing is lost
constexpr double kLinkBound = 0.9;  // of a step that an interface is busy
constexpr double kDay = 86'400;
constexpr double kLeastBlock = 256 * 1024;  // bytes, as optim/blocks.cpp
constexpr double kMostBlocks = 2000;        // of a model that is simulated in other blocks
const std::vector<std::int64_t> kBlockBytes = {1 << 20, 5 << 20, 25 << 20};
const std::vector<Wire> kWires = {Wire::fp32, Wire::bf16, Wire::int8};

struct PlanOptions {
  std::string profile;
  std::string compute;  // the other half, where the profile is a network alone
  std::string workers;  // "8..1024" or "8,12,16"; empty: as measured
  int iterations = 60;
  int warm_up = 20;
  double failures = 6.5;  // of 1000 hosts in a day
  Failures costs;         // their other terms
  bool json = false;
  std::string html;
};

// "8..64" is 8, 16, 32, 64.
std::optional<std::vector<int>> numbers_of_workers(const std::string& text) {
  std::vector<int> all;
  const char *at = text.data(), *const end = at + text.size();
  const auto number = [&]() -> std::optional<int> {
    int value = 0;
    const auto read = std::from_chars(at, end, value);
    if (read.ec != std::errc() || value < 1 || value > kMostPlanned) return std::nullopt;
    at = read.ptr;
    return value;
  };
  const auto first = number();
  if (!first) return std::nullopt;
  all.push_back(*first);
  if (end - at > 2 && at[0] == '.' && at[1] == '.') {
    at += 2;
    const auto last = number();
    if (!last || at != end || *last < *first) return std::nullopt;
    while (all.back() < *last) all.push_back(std::min(2 * all.back(), *last));
    return all;
  }
  while (at != end) {
    if (*at++ != ',') return std::nullopt;
    const auto next = number();
    if (!next || *next <= all.back()) return std::nullopt;
    all.push_back(*next);
  }
  return all;
}

// The measured cluster, or one of n workers made of its hosts, again and again.
struct Planned {
  Network network;
  int workers_per_host = 1;
};

Planned cluster_of(const Profile& profile, int n) {
  Planned planned{network_of(profile), 1};
  std::size_t most = 1;
  for (const Host& host : profile.hosts) most = std::max(most, host.workers.size());
  planned.workers_per_host = static_cast<int>(most);
  if (n == profile.workers()) return planned;
  if (profile.hosts.size() == 1 && n > profile.workers()) {
    throw UsageError(
        fmt::format("--workers {}: {} were measured on one host, and nothing is known of a network between "
                    "hosts: measure on two or more",
                    n, profile.workers()));
  }
  Network& network = planned.network;
  network.host_of.clear();
  network.hosts.clear();
  for (int i = 0; i < n; ++i) {
    const std::size_t host = static_cast<std::size_t>(i) / most;
    if (host == network.hosts.size()) network.hosts.push_back(profile.hosts[host % profile.hosts.size()]);
    network.host_of.push_back(static_cast<int>(host));
  }
  std::erase_if(network.links, [&](const HostLink& link) {
    return std::max(link.from, link.to) >= static_cast<int>(network.hosts.size());
  });
  return planned;
}

struct PlannedWorld {
  int n = 0;
  bool measured = false;
  Forecast all_reduce;
  std::vector<Candidate> rows;
  const Candidate* best = nullptr;
  std::optional<Forecast> one_host;                   // with as many samples in a step
  Forecast atc;                                       // as the best row, with the other scheme
  std::map<Wire, AsynchronousForecast> asynchronous;  // pairs on its graph, at rate 1
  std::map<std::int64_t, Forecast> sizes;             // as the best row, by Options::block_bytes
  std::int64_t block_bytes = 0;                       // the largest of these that is as good as any
  double lost_to_restarts = 0, lost_to_absence = 0;
};

std::string bottleneck(const Forecast& outcome, const Network& network) {
  if (outcome.waited < kAsGood * outcome.step) return "compute";
  if (outcome.busiest_host < 0)
    return outcome.late > outcome.waited / 2 ? "the slowest workers" : "the network";
  if (outcome.link < kLinkBound * outcome.step) return "the slowest workers";
  return fmt::format("the interface of {}", network.hosts[outcome.busiest_host].name);
}

// The first host alone takes n workers' samples: each of its workers makes as many more passes, and they average in memory.
Forecast one_host(const Profile& profile, int n, const Horizon& run) {
  const int here = static_cast<int>(profile.hosts[0].workers.size());
  Work work = work_of(profile);
  work.compute.clear();
  for (const int worker : profile.hosts[0].workers) {
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

// What the optimizer makes of Options::block_bytes.
double block_of(const Profile& profile, std::int64_t block_bytes) {
  const double total = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  return std::max(kLeastBlock, std::min(static_cast<double>(block_bytes), total / 8));
}

int most_neighbours(const Schedule& schedule) {
  std::size_t most = 0;
  for (const Graph& graph : schedule.rounds) {
    for (const auto& neighbours : graph.neighbours) most = std::max(most, neighbours.size());
  }
  return static_cast<int>(most);
}

// What else there is to say of the best row.
void advise(PlannedWorld& world, const Planned& planned, const Profile& profile, const Horizon& run,
            const PlanOptions& options) {
  const Schedule schedule = make_schedule(world.best->schedule, world.n, planned.workers_per_host);
  world.atc = simulate(planned.network, work_on(profile, world.best->wire), schedule, Mixing::atc, run);
  for (const Wire wire : kWires) {
    if (world.n > 1)
      world.asynchronous[wire] =
          simulate_asynchronous(planned.network, work_on(profile, wire), pair_rates(schedule, 1), run);
  }
  double fastest = world.best->outcome.step;
  const double total = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  for (const std::int64_t bytes : kBlockBytes) {
    const double block = block_of(profile, bytes);
    if (total / block > kMostBlocks) continue;
    const Work work = work_on(in_blocks_of(profile, block), world.best->wire);
    const Forecast& outcome = world.sizes[bytes] =
        simulate(planned.network, work, schedule, Mixing::cta, run);
    fastest = std::min(fastest, outcome.step);
  }
  for (const auto& [bytes, outcome] : world.sizes) {
    if (outcome.step <= fastest * (1 + kAsGood)) world.block_bytes = bytes;
  }
  if (world.n > static_cast<int>(profile.hosts[0].workers.size()))
    world.one_host = one_host(profile, world.n, run);
  Failures failures = options.costs;
  failures.rate = options.failures / 1000 / kDay;
  world.lost_to_restarts = lost_to_restarts(failures, static_cast<int>(planned.network.hosts.size()));
  world.lost_to_absence = lost_to_absence(failures, most_neighbours(schedule));
}

PlannedWorld world_of(const Profile& profile, int n, const PlanOptions& options) {
  const Planned planned = cluster_of(profile, n);
  const Horizon run{.iterations = options.warm_up + options.iterations, .warm_up = options.warm_up};
  PlannedWorld world;
  world.n = n;
  world.measured = n == profile.workers();
  world.all_reduce = simulate_all_reduce(planned.network, work_of(profile), run,
                                         world.measured ? profile.all_reduce : std::vector<AllReduceTime>{});
  world.rows = candidates(planned.network, planned.workers_per_host, profile, kWires, 1, Mixing::cta, run);
  world.best = &recommended(world.rows);
  advise(world, planned, profile, run, options);
  return world;
}

double efficiency(const Forecast& outcome) { return outcome.own / outcome.step; }

// The last number of workers up to which each increase has brought at least kWorthIt of what it could.
int knee(const std::vector<PlannedWorld>& worlds, const std::map<int, double>& steps) {
  int last = worlds[0].n;
  for (std::size_t k = 1; k < worlds.size(); ++k) {
    const int n = worlds[k].n;
    const double more = static_cast<double>(n) / last, gained = more * steps.at(last) / steps.at(n);
    if (gained - 1 < kWorthIt * (more - 1)) break;
    last = n;
  }
  return last;
}

nlohmann::ordered_json json_of_outcome(const Forecast& outcome, const Forecast& all_reduce,
                                       const Network& network) {
  return {{"step", outcome.step},
          {"low", outcome.low},
          {"high", outcome.high},
          {"efficiency", efficiency(outcome)},
          {"speed_up", all_reduce.step / outcome.step},
          {"bottleneck", bottleneck(outcome, network)}};
}

std::vector<std::string> advice(const PlannedWorld& world, const PlanOptions& options) {
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "Recommended: {} over {}: of what is within {:.0f} % of the fastest step, the widest wire, and on it "
      "the first of this list.",
      world.best->schedule, name_of(world.best->wire), kAsGood * 100));
  lines.push_back(
      fmt::format("Scheme cta: atc, whose exchange is waited for within the step, takes {:.2f} ms.",
                  world.atc.step * 1e3));
  std::vector<std::string> rates;
  for (const auto& [wire, outcome] : world.asynchronous)
    rates.push_back(fmt::format("{:.2f} over {}", outcome.rate, name_of(wire)));
  if (!rates.empty())
    lines.push_back(
        fmt::format("Asynchronous gossip on its graph, as a2cid2, waits for nobody: a step takes {:.2f} ms. "
                    "Of one averaging for each gradient the network carries {}.",
                    world.asynchronous.begin()->second.step.step * 1e3, fmt::join(rates, ", ")));
  std::vector<std::string> sizes;
  for (const auto& [bytes, outcome] : world.sizes)
    sizes.push_back(fmt::format("{} MB {:.2f} ms", bytes >> 20, outcome.step * 1e3));
  if (!sizes.empty())
    lines.push_back(fmt::format("Blocks of {} MB, the largest that are as good as any: {}.",
                                world.block_bytes >> 20, fmt::join(sizes, ", ")));
  if (world.one_host) {
    const double times = world.one_host->step / world.best->outcome.step;
    lines.push_back(fmt::format("For as many samples one host alone takes {:.2f} ms, {:.2f} times as long{}.",
                                world.one_host->step * 1e3, times,
                                times > 1 ? "" : ": more hosts are not worth it"));
  }
  lines.push_back(
      fmt::format("Failures, {:g} of 1000 hosts in a day: {:.2g} % of the time is lost where all restart, "
                  "{:.2g} % where the others go on.",
                  options.failures, world.lost_to_restarts * 100, world.lost_to_absence * 100));
  return lines;
}

// In the letters of plan/closed_forms.h.
struct MeanTimes {
  double F = 0;
  std::vector<double> b, u;
};

MeanTimes mean_times(const Profile& profile) {
  const std::size_t blocks = profile.blocks.size();
  MeanTimes mean{.b = std::vector<double>(blocks), .u = std::vector<double>(blocks)};
  const auto add = [&](double& sum, const std::vector<double>& times) {
    for (const double time : times)
      sum += time / static_cast<double>(times.size()) / static_cast<double>(profile.compute.size());
  };
  for (const Compute& compute : profile.compute) {
    add(mean.F, compute.data_wait);
    add(mean.F, compute.forward);
    for (std::size_t k = 0; k < blocks; ++k) {
      add(mean.b[k], compute.backward[k]);
      add(mean.u[k], compute.update[k]);
    }
  }
  return mean;
}

ReportWorld report_of(const Profile& profile, const PlannedWorld& world, const PlanOptions& options) {
  const Network network = cluster_of(profile, world.n).network;
  ReportWorld report{.workers = world.n,
                     .hosts = static_cast<int>(network.hosts.size()),
                     .extrapolated = !world.measured,
                     .rows = {},
                     .advice = advice(world, options),
                     .all_reduce = {},
                     .recommended = {}};
  const auto add = [&](const std::string& schedule, Wire wire, const Forecast& outcome) {
    report.rows.push_back({.schedule = schedule,
                           .wire = std::string(name_of(wire)),
                           .bottleneck = bottleneck(outcome, network),
                           .step = outcome.step,
                           .low = outcome.low,
                           .high = outcome.high,
                           .efficiency = efficiency(outcome),
                           .speed_up = world.all_reduce.step / outcome.step});
  };
  add("all-reduce", Wire::fp32, world.all_reduce);
  for (const Candidate& row : world.rows) {
    add(row.schedule, row.wire, row.outcome);
    report.rows.back().recommended = &row == world.best;
  }
  const MeanTimes mean = mean_times(profile);
  const double total = std::accumulate(profile.blocks.begin(), profile.blocks.end(), 0.0);
  std::vector<double> reduced, mixed;
  for (const double bytes : profile.blocks) {
    reduced.push_back(
        world.all_reduce.link == 0
            ? 0
            : all_reduce_seconds(network, bytes,
                                 world.measured ? profile.all_reduce : std::vector<AllReduceTime>{}));
    mixed.push_back(world.best->outcome.link * bytes / total);
  }
  report.all_reduce = all_reduce_iteration(mean.F, mean.b, mean.u, reduced);
  report.recommended = cta_iteration(mean.F, mean.b, mean.u, mixed);
  return report;
}

int plan(const PlanOptions& options) {
  const Profile profile = whole_profile(options.profile, options.compute);
  const std::vector<int> numbers =
      options.workers.empty() ? std::vector{profile.workers()} : *numbers_of_workers(options.workers);
  std::vector<PlannedWorld> worlds;
  worlds.reserve(numbers.size());  // `best` points into a world
  for (int n : numbers) worlds.push_back(world_of(profile, n, options));

  std::map<int, double> best_steps, reduced_steps;
  for (const PlannedWorld& world : worlds) {
    best_steps[world.n] = world.best->outcome.step;
    reduced_steps[world.n] = world.all_reduce.step;
  }
  const int best_knee = knee(worlds, best_steps), reduced_knee = knee(worlds, reduced_steps);
  const std::string knees = fmt::format(
      "More workers bring at least {:.0f} % of what they could up to {} workers; with all-reduce up to {}.",
      kWorthIt * 100, best_knee, reduced_knee);

  if (!options.html.empty()) {
    std::vector<ReportWorld> report;
    for (const PlannedWorld& world : worlds) report.push_back(report_of(profile, world, options));
    write_text(options.html, html_report(report, options.profile, knees));
  }
  if (options.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const PlannedWorld& world : worlds) {
      const Network network = cluster_of(profile, world.n).network;
      nlohmann::ordered_json rows = nlohmann::ordered_json::array();
      for (const Candidate& row : world.rows) {
        nlohmann::ordered_json line = {{"schedule", row.schedule}, {"wire", name_of(row.wire)}};
        line.update(json_of_outcome(row.outcome, world.all_reduce, network));
        rows.push_back(std::move(line));
      }
      all.push_back({{"workers", world.n},
                     {"extrapolated", !world.measured},
                     {"all_reduce", json_of_outcome(world.all_reduce, world.all_reduce, network)},
                     {"gossip", std::move(rows)},
                     {"recommended",
                      {{"schedule", world.best->schedule},
                       {"wire", name_of(world.best->wire)},
                       {"scheme", "cta"},
                       {"block_bytes", world.sizes.empty() ? nlohmann::ordered_json()
                                                           : nlohmann::ordered_json(world.block_bytes)}}},
                     {"atc", json_of_outcome(world.atc, world.all_reduce, network)},
                     {"lost_to_failures",
                      {{"all_reduce", world.lost_to_restarts}, {"gossip", world.lost_to_absence}}}});
      for (const auto& [wire, outcome] : world.asynchronous) {
        all.back()["asynchronous"]["step"] = outcome.step.step;
        all.back()["asynchronous"]["rate"][name_of(wire)] = outcome.rate;
      }
      if (world.one_host)
        all.back()["one_host"] = {{"step", world.one_host->step},
                                  {"speed_up", world.all_reduce.step / world.one_host->step}};
    }
    const nlohmann::ordered_json root = {{"measured_workers", profile.workers()},
                                         {"worlds", std::move(all)},
                                         {"knee", best_knee},
                                         {"knee_of_all_reduce", reduced_knee}};
    fmt::print("{}\n", root.dump(2));
    return 0;
  }

  for (const PlannedWorld& world : worlds) {
    const Network network = cluster_of(profile, world.n).network;
    fmt::print("{} worker{} on {} host{}{}\n\n", world.n, world.n == 1 ? "" : "s", network.hosts.size(),
               network.hosts.size() == 1 ? "" : "s",
               world.measured ? "" : fmt::format(" (extrapolated: {} were measured)", profile.workers()));
    fmt::print("{:<22}{:<7}{:<12}{:<20}{:<12}{:<10}{}\n", "schedule", "wire", "step", "of 10 to 90 %",
               "efficiency", "speed-up", "bottleneck");
    const auto line = [&](const std::string& schedule, Wire wire, const Forecast& outcome) {
      fmt::print("{:<22}{:<7}{:<12}{:<20}{:<12}{:<10}{}\n", schedule, name_of(wire),
                 fmt::format("{:.2f} ms", outcome.step * 1e3),
                 fmt::format("{:.2f} to {:.2f} ms", outcome.low * 1e3, outcome.high * 1e3),
                 fmt::format("{:.0f} %", efficiency(outcome) * 100),
                 fmt::format("{:.2f}", world.all_reduce.step / outcome.step), bottleneck(outcome, network));
    };
    line("all-reduce", Wire::fp32, world.all_reduce);
    for (const Candidate& row : world.rows) line(row.schedule, row.wire, row.outcome);
    if (world.one_host) line("one host alone", Wire::fp32, *world.one_host);
    fmt::print("\n{}\n\n", fmt::join(advice(world, options), "\n"));
  }
  fmt::print(
      "Step: one iteration, in the mean; efficiency: the part of it that a worker computes; speed-up: over "
      "all-reduce.\n");
  if (worlds.size() > 1) fmt::print("{}\n", knees);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Command& command) {
  CLI::App* sub =
      app.add_subcommand("plan", "How long a step will take, before the run, from what was measured");
  auto options = std::make_shared<PlanOptions>();
  sub->add_option("--profile", options->profile,
                  "what was measured: of `starling probe`, or with compute in it (docs/planner.md)")
      ->type_name("FILE")
      ->required();
  sub->add_option("--compute", options->compute,
                  "of `starling train --profile-out`, in place of the profile's")
      ->type_name("FILE");
  sub->add_option("--workers", options->workers,
                  "for so many workers: 8,12,16, or 8..1024, doubling; without it as many as were measured")
      ->type_name("N")
      ->check([](const std::string& text) {
        return numbers_of_workers(text)
                   ? ""
                   : fmt::format("Value {} must be rising numbers as in 8,12,16 or 8..64, from 1 to {}", text,
                                 kMostPlanned);
      });
  sub->add_option("--iterations", options->iterations, "how many iterations to simulate")
      ->type_name("T")
      ->check(CLI::Range(1, 10'000))
      ->capture_default_str();
  sub->add_option("--warm-up", options->warm_up, "iterations before these, in which all begin together")
      ->type_name("T")
      ->check(CLI::Range(0, 10'000))
      ->capture_default_str();
  const auto add_failure_option = [&](const std::string& name, double& value, const std::string& help) {
    sub->add_option(name, value, help)->type_name("X")->check(CLI::Range(0.0, 1e6))->capture_default_str();
  };
  add_failure_option("--failures", options->failures, "failing hosts, of 1000 in a day");
  add_failure_option("--checkpoint-seconds", options->costs.checkpoint, "to write a checkpoint");
  add_failure_option("--restart-seconds", options->costs.restart,
                     "to notice a failure and start all workers again");
  add_failure_option("--away-seconds", options->costs.away,
                     "for which a failed host stays away while the others go on");
  sub->add_flag("--json", options->json, "JSON instead of a table");
  sub->add_option("--html", options->html, "the same with pictures, as one file for a browser")
      ->type_name("FILE");
  sub->callback([options, &command] { command = [options] { return plan(*options); }; });
}

}  // namespace starling::cli
