// starling plan --profile profile.json: how long a step will take, with every schedule and wire and so many workers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands.h"
#include "starling/core/error.h"
#include "starling/kernels/wire.h"
#include "starling/plan/simulate.h"
#include "starling/topology/schedules.h"

namespace starling::cli {

namespace {

constexpr int kMostPlanned = 1024;
constexpr double kAsGood = 0.02;    // of a step: what is no difference
constexpr double kWorthIt = 0.5;    // of the throughput that more workers bring where nothing is lost
constexpr double kLinkBound = 0.9;  // of a step that an interface is busy
const std::vector<std::string> kWires = {"fp32", "bf16", "int8"};  // what keeps most first
// Where steps take as long, this order decides: one peer and exact first.
const std::vector<std::string> kPlanned = {
    "base-2",  "alternating-exp-ring", "hierarchical:base-2", "inner-outer:base-2", "base-3", "ring",
    "complete"};

struct PlanOptions {
  std::string profile;
  std::string workers;  // "8..1024" or "8,12,16"; empty: as measured
  int iterations = 60;
  bool json = false;
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

struct PlannedRow {
  std::string schedule, wire;
  Outcome outcome;
};

struct PlannedWorld {
  int n = 0;
  bool measured = false;
  Outcome all_reduce;
  std::vector<PlannedRow> rows;
  const PlannedRow* best = nullptr;
};

std::string bottleneck(const Outcome& outcome, const Network& network) {
  if (outcome.waited < kAsGood * outcome.step) return "compute";
  if (outcome.busiest_host < 0)
    return outcome.late > outcome.waited / 2 ? "the slowest workers" : "the network";
  if (outcome.link < kLinkBound * outcome.step) return "the slowest workers";
  return fmt::format("the interface of {}", network.hosts[outcome.busiest_host].name);
}

PlannedWorld world_of(const Profile& profile, int n, const PlanOptions& options) {
  const Planned planned = cluster_of(profile, n);
  const Horizon run{.iterations = options.iterations + 20, .warm_up = 20};
  PlannedWorld world;
  world.n = n;
  world.measured = n == profile.workers();
  world.all_reduce = simulate_all_reduce(planned.network, work_of(profile), run,
                                         world.measured ? profile.all_reduce : std::vector<AllReduceTime>{});
  for (const std::string& name : kPlanned) {
    Schedule schedule;
    try {
      schedule = make_schedule(name, n, planned.workers_per_host);
    } catch (const UsageError&) {  // the family does not exist for this n
      continue;
    }
    for (const std::string& wire : kWires) {
      if (name == "complete" && is_modular(wire_named(wire))) continue;  // n - 1 models: never worth it
      Work work = work_of(profile, static_cast<double>(bytes_of(wire_named(wire), 2)) / 8);
      work.groups = !is_modular(wire_named(wire));
      world.rows.push_back({name, wire, simulate(planned.network, work, schedule, Mixing::cta, run)});
    }
  }
  double fastest = world.rows[0].outcome.step;
  for (const PlannedRow& row : world.rows) fastest = std::min(fastest, row.outcome.step);
  for (const std::string& wire : kWires) {  // the widest wire first
    for (const PlannedRow& row : world.rows) {
      if (world.best == nullptr && row.wire == wire && row.outcome.step <= fastest * (1 + kAsGood))
        world.best = &row;
    }
  }
  return world;
}

double efficiency(const Outcome& outcome) { return outcome.own / outcome.step; }

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

nlohmann::ordered_json json_of_outcome(const Outcome& outcome, const Outcome& all_reduce,
                                       const Network& network) {
  return {{"step", outcome.step},
          {"low", outcome.low},
          {"high", outcome.high},
          {"efficiency", efficiency(outcome)},
          {"speed_up", all_reduce.step / outcome.step},
          {"bottleneck", bottleneck(outcome, network)}};
}

int plan(const PlanOptions& options) {
  const Profile profile = read_profile(options.profile);
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

  if (options.json) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const PlannedWorld& world : worlds) {
      const Network network = cluster_of(profile, world.n).network;
      nlohmann::ordered_json rows = nlohmann::ordered_json::array();
      for (const PlannedRow& row : world.rows) {
        nlohmann::ordered_json line = {{"schedule", row.schedule}, {"wire", row.wire}};
        line.update(json_of_outcome(row.outcome, world.all_reduce, network));
        rows.push_back(std::move(line));
      }
      all.push_back({{"workers", world.n},
                     {"extrapolated", !world.measured},
                     {"all_reduce", json_of_outcome(world.all_reduce, world.all_reduce, network)},
                     {"gossip", std::move(rows)},
                     {"recommended", {{"schedule", world.best->schedule}, {"wire", world.best->wire}}}});
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
    const auto line = [&](const std::string& schedule, const std::string& wire, const Outcome& outcome) {
      fmt::print("{:<22}{:<7}{:<12}{:<20}{:<12}{:<10}{}\n", schedule, wire,
                 fmt::format("{:.2f} ms", outcome.step * 1e3),
                 fmt::format("{:.2f} to {:.2f} ms", outcome.low * 1e3, outcome.high * 1e3),
                 fmt::format("{:.0f} %", efficiency(outcome) * 100),
                 fmt::format("{:.2f}", world.all_reduce.step / outcome.step), bottleneck(outcome, network));
    };
    line("all-reduce", "fp32", world.all_reduce);
    for (const PlannedRow& row : world.rows) line(row.schedule, row.wire, row.outcome);
    fmt::print(
        "\nRecommended: {} over {}: of what is within {:.0f} % of the fastest step, the widest wire, and on "
        "it the "
        "first of this list.\n\n",
        world.best->schedule, world.best->wire, kAsGood * 100);
  }
  fmt::print(
      "Step: one iteration, in the mean; efficiency: the part of it that a worker computes; speed-up: over "
      "all-reduce.\n");
  if (worlds.size() > 1) {
    fmt::print(
        "More workers bring at least {:.0f} % of what they could up to {} workers; with all-reduce up to "
        "{}.\n",
        kWorthIt * 100, best_knee, reduced_knee);
  }
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Command& command) {
  CLI::App* sub =
      app.add_subcommand("plan", "How long a step will take, before the run, from what was measured");
  auto options = std::make_shared<PlanOptions>();
  sub->add_option("--profile", options->profile, "what was measured: a profile.json (docs/planner.md)")
      ->type_name("FILE")
      ->required();
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
  sub->add_flag("--json", options->json, "JSON instead of a table");
  sub->callback([options, &command] { command = [options] { return plan(*options); }; });
}

}  // namespace starling::cli
