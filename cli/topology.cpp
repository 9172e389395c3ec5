// starling topology NAME --workers N: the neighbours in every round of a schedule, and how well it
// averages. --compare: all schedules beside each other.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/table.h"
#include "cli/topology_compare.h"
#include "cli/topology_plot.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/kernels/mask.h"
#include "starling/kernels/top_k.h"
#include "starling/kernels/wire.h"
#include "starling/optim/options.h"
#include "starling/optim/schemes/table.h"
#include "starling/optim/sent_size.h"
#include "starling/topology/schedules.h"
#include "starling/topology/spectrum.h"
#include "starling/topology/traffic.h"
#include "starling/topology/weights.h"

namespace starling::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr int most_workers = 512;    // the matrices are dense: this many take seconds
constexpr size_t table_rounds = 12;  // shown by default
constexpr const char* kTopK = "top-k";

struct TopologyOptions {
  std::string name;
  std::string workers;  // "8" or "2-16", checked by worlds()
  int workers_per_node = 1;
  std::string wire = "fp32";
  int one_in = 1;
  size_t rounds = 0;          // to show; 0: all in JSON, the first ones in a table
  std::string plot, fastest;  // files
  bool compare = false;
  bool json = false;
};

// "8" is {8, 8}, "2-16" is {2, 16}.
std::optional<std::pair<int, int>> worlds(const std::string& text) {
  const std::size_t dash = text.find('-');
  const auto first = parse_number<int>(text.substr(0, dash));
  const auto last = dash == std::string::npos ? first : parse_number<int>(text.substr(dash + 1));
  if (!first || !last || *first < 1 || *last < *first || *last > most_workers) return std::nullopt;
  return std::pair(*first, *last);
}

struct Report {
  Schedule schedule;
  std::vector<int> peers;      // by round: the largest number of one worker
  std::vector<double> second;  // by round: second singular value
  double period_second = 0;
  std::optional<int> rounds_to_average;
  double sent = 0;       // per worker and round, in units of the model
  double most_sent = 0;  // by one worker in one round
  bool symmetric = true;
};

// For a model in fp32; a group's mean stays fp32.
Sizes sizes_of(const TopologyOptions& options) {
  if (options.wire == kTopK) {
    const auto n = static_cast<std::size_t>(options.one_in);
    const TopK top{static_cast<std::uint32_t>(options.one_in)};
    return {.block = static_cast<double>(top.words(n)) / static_cast<double>(n), .groups = false};
  }
  const Wire wire = wire_named(options.wire);
  return {.block = static_cast<double>(bytes_of(wire, 2)) / 8 / options.one_in,
          .mean = 1.0 / options.one_in,
          .groups = !is_modular(wire)};
}

Report examine(Schedule schedule, const TopologyOptions& options) {
  if (options.wire == kTopK) check_lasting_edges(schedule, "--wire top-k");
  Report report;
  const Sizes sizes = sizes_of(options);
  for (const Graph& round : schedule.rounds) {
    size_t most = 0;
    for (const auto& row : round.neighbours) most = std::max(most, row.size());
    report.peers.push_back(static_cast<int>(most));
    report.second.push_back(second_singular_value(mixing_matrix(round)));
    report.symmetric = report.symmetric && round.symmetric();
    for (double models : sent(round, sizes)) {
      report.sent += models;
      report.most_sent = std::max(report.most_sent, models);
    }
  }
  report.sent /= static_cast<double>(schedule.rounds.size()) * schedule.workers();
  report.period_second = second_singular_value(period_product(schedule));
  report.rounds_to_average = rounds_to_average(schedule);
  report.schedule = std::move(schedule);
  return report;
}

// One row of W in short form: neighbours of equal weight together, "0-3 7 (1/8)".
std::string row_text(const std::vector<Neighbour>& row) {
  std::vector<double> weights;
  for (const Neighbour& j : row) {
    if (std::ranges::count(weights, j.weight) == 0) weights.push_back(j.weight);
  }
  std::string text;
  for (double weight : weights) {
    std::vector<int> ranks;
    for (const Neighbour& j : row) {
      if (j.weight == weight) ranks.push_back(j.rank);
    }
    for (size_t first = 0; first < ranks.size();) {
      size_t last = first;
      while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
      if (last < first + 2) last = first;  // two ranks are shorter than a range
      text +=
          last == first ? fmt::format("{} ", ranks[first]) : fmt::format("{}-{} ", ranks[first], ranks[last]);
      first = last + 1;
    }
    text += fmt::format("({}) ", weight_text(weight));
  }
  if (text.empty()) return "-";
  text.pop_back();
  return text;
}

void print_table(const Report& report, size_t shown) {
  std::vector<std::vector<std::string>> lines;
  const auto add = [&](const std::string& name, const auto& cell) {  // of a round
    auto& line = lines.emplace_back(1, name);
    for (size_t r = 0; r < shown; ++r) line.push_back(cell(r));
  };
  add("worker", [](size_t r) { return fmt::format("round {}", r); });
  for (int i = 0; i < report.schedule.workers(); ++i) {
    add(fmt::format("{}", i), [&](size_t r) { return row_text(report.schedule.rounds[r].neighbours[i]); });
  }
  add("most peers", [&](size_t r) { return fmt::format("{}", report.peers[r]); });
  add("2nd sing. value", [&](size_t r) { return fmt::format("{:.4f}", report.second[r]); });
  fmt::print("{}", table_text(lines));
}

// Completes the unit "times the model".
std::string unit(const TopologyOptions& options) {
  const std::string share =
      options.one_in == 1
          ? ""
          : fmt::format("{}one value in {}", options.wire == "fp32" ? "" : ", ", options.one_in);
  if (options.wire == "fp32") return share.empty() ? "" : " in fp32, " + share;
  return fmt::format(" in fp32, as {}{}", options.wire, share);
}

void print_report(const Report& report, const TopologyOptions& options) {
  const int n = report.schedule.workers();
  const size_t period = report.schedule.rounds.size();
  fmt::print("{}, {} worker{}, a period of {} round{}\n", printable(report.schedule.name), n,
             n == 1 ? "" : "s", period, period == 1 ? "" : "s");
  fmt::print(
      "Neighbours of each worker, with the weights of their values; the rest is the weight of its own.\n\n");
  const size_t shown = std::min(options.rounds > 0 ? options.rounds : table_rounds, period);
  print_table(report, shown);
  if (shown < period) fmt::print("... and {} more rounds (--rounds R shows the first R)\n", period - shown);
  fmt::print("\nrounds to the exact average       {}\n",
             report.rounds_to_average ? fmt::format("{}", *report.rounds_to_average) : "never exact");
  fmt::print("2nd singular value of a period    {:.4f}\n", report.period_second);
  fmt::print("peers per round                   at most {}\n",
             *std::max_element(report.peers.begin(), report.peers.end()));
  fmt::print("sent per worker and round         {:.4g} times the model{}, at most {:.4g}\n", report.sent,
             unit(options), report.most_sent);
  fmt::print("weights                           {}\n",
             report.symmetric ? "symmetric" : "not symmetric: a failed exchange moves the mean");
}

// One line for each number of workers.
void print_overview(const TopologyOptions& options, const std::map<int, std::optional<Report>>& reports) {
  fmt::print("{}\n\n{:<9}{:<8}{:<18}{:<12}{:<18}{}\n", printable(options.name), "workers", "period",
             "rounds to exact", "most peers", "sent (most)", "2nd sing. value");
  for (const auto& [n, report] : reports) {
    if (!report) {
      fmt::print("{:<9}does not exist\n", n);
      continue;
    }
    fmt::print("{:<9}{:<8}{:<18}{:<12}{:<18}{:.4f}\n", n, report->schedule.rounds.size(),
               report->rounds_to_average ? fmt::format("{}", *report->rounds_to_average) : "never",
               *std::max_element(report->peers.begin(), report->peers.end()),
               fmt::format("{:.4g} ({:.4g})", report->sent, report->most_sent), report->period_second);
  }
  fmt::print(
      "\nSent: times the model{}, per worker and round, and the maximum of one worker in a round. 2nd "
      "singular value of a period.\n",
      unit(options));
}

Json json_of(const Report& report, const TopologyOptions& options) {
  const Schedule& schedule = report.schedule;
  Json rounds = Json::array();
  const size_t period = schedule.rounds.size();
  for (size_t r = 0; r < (options.rounds > 0 ? std::min(options.rounds, period) : period); ++r) {
    Json workers = Json::array();
    for (int i = 0; i < schedule.workers(); ++i) {
      Json neighbours = Json::array();
      for (const Neighbour& j : schedule.rounds[r].neighbours[i]) {
        neighbours.push_back({{"worker", j.rank}, {"weight", j.weight}});
      }
      workers.push_back({{"worker", i},
                         {"self_weight", schedule.rounds[r].self_weight(i)},
                         {"neighbours", std::move(neighbours)}});
    }
    rounds.push_back({{"round", r},
                      {"peers", report.peers[r]},
                      {"second_singular_value", report.second[r]},
                      {"mixing", std::move(workers)}});
  }
  return {
      {"schedule", schedule.name},
      {"workers", schedule.workers()},
      {"workers_per_node", options.workers_per_node},
      {"period", period},
      {"rounds_to_exact_average", or_null(report.rounds_to_average)},
      {"symmetric", report.symmetric},
      {"peers", *std::max_element(report.peers.begin(), report.peers.end())},
      {"wire", options.wire},
      {"one_in", options.one_in},
      {"sent", report.sent},
      {"most_sent", report.most_sent},
      {"second_singular_value", report.period_second},
      {"rounds", std::move(rounds)},
  };
}

void write_plot(const Schedule& schedule, const TopologyOptions& options) {
  const size_t most = options.rounds > 0 ? options.rounds : table_rounds;
  std::ofstream file(options.plot, std::ios::binary);
  file << picture(schedule, std::min(most, schedule.rounds.size()));
  if (!file.flush()) throw Error(fmt::format("{}: cannot be written", options.plot));
}

// Writes a topology in the format of custom.cpp.
void write_topology(const Schedule& schedule, const std::string& path) {
  Json rounds = Json::array();
  for (const Graph& round : schedule.rounds) {
    Json edges = Json::array();
    for (int i = 0; i < round.workers(); ++i) {
      for (const Neighbour& j : round.neighbours[i]) {
        if (i < j.rank) edges.push_back({i, j.rank, j.weight});
      }
    }
    rounds.push_back({{"edges", std::move(edges)}});
  }
  std::ofstream file(path, std::ios::binary);
  file << Json{{"workers", schedule.workers()}, {"symmetric", true}, {"rounds", rounds}} << "\n";
  if (!file.flush()) throw Error(fmt::format("{}: cannot be written", path));
}

Schedule schedule_of(const TopologyOptions& options, int n) {
  Schedule schedule = make_schedule(options.name, n, options.workers_per_node);
  if (options.fastest.empty()) return schedule;
  check_lasting_edges(schedule, "--fastest");
  schedule = {options.fastest, {fastest_mixing(schedule.rounds.front())}};
  write_topology(schedule, options.fastest);
  return schedule;
}

int one_world(const TopologyOptions& options, int n) {
  Schedule schedule = schedule_of(options, n);
  if (!options.plot.empty()) {
    write_plot(schedule, options);
    return 0;
  }
  const Report report = examine(std::move(schedule), options);
  options.json ? print_json(json_of(report, options)) : print_report(report, options);
  return 0;
}

int many_worlds(const TopologyOptions& options, int first, int last) {
  std::map<int, std::optional<Report>> reports;
  std::map<int, std::string> errors;
  for (int n = first; n <= last; ++n) {
    auto& report = reports[n];
    try {
      report = examine(make_schedule(options.name, n, options.workers_per_node), options);
    } catch (const UsageError& error) {  // the family does not exist for this n
      errors[n] = error.what();
    }
  }
  if (errors.size() == reports.size()) throw UsageError(errors.begin()->second);
  if (!options.json) {
    print_overview(options, reports);
    return 0;
  }
  Json all = Json::array();
  for (const auto& [n, report] : reports) {
    all.push_back(report ? json_of(*report, options) : Json{{"workers", n}, {"error", errors[n]}});
  }
  print_json(all);
  return 0;
}

std::string rounds_text(const Compared& line) {
  if (!line.has_rounds) return "-";
  if (std::isinf(line.rounds)) return "never";
  return fmt::format("{}{:.0f}", line.estimated ? "~" : "", line.rounds);
}

// A scheme on a topology, or with its own rounds.
std::string compared_name(const Compared& line) {
  if (line.scheme.empty()) return line.name == Options{}.topology ? line.name + " (default)" : line.name;
  return scheme_info(line.scheme).uses_topology() ? fmt::format("{} on {}", line.scheme, line.name)
                                                  : line.scheme;
}

// Explains the lines of schemes.
void print_schemes(const std::vector<Compared>& lines, const std::vector<std::string>& left_out) {
  std::vector<std::string> all, by_shapes;
  for (const Compared& line : lines) {
    if (line.scheme.empty()) continue;
    all.push_back(line.scheme);
    if (scheme_info(line.scheme).traits.wire_values != nullptr) by_shapes.push_back(line.scheme);
  }
  if (!all.empty())
    fmt::print(
        "Schemes (mixing.scheme) that send something else than their parameters, or have rounds of their "
        "own:\n{}. A dash: workers do not agree by the rounds' weights alone.\n",
        fmt::join(all, ", "));
  if (!by_shapes.empty())
    fmt::print("The bytes of {0} are those of matrices of {1} x {1}.\n", fmt::join(by_shapes, ", "),
               kTypicalSide);
  if (!left_out.empty())
    fmt::print("Left out, since they refuse this wire or one-in: {}.\n", fmt::join(left_out, ", "));
}

int compare(const TopologyOptions& options, int n) {
  const Options sent{.wire = wire_named(options.wire),
                     .one_in = options.one_in,
                     .workers_per_node = options.workers_per_node};
  const Sizes sizes = sizes_of(options);
  const auto [lines, left_out, other_rounds] = compare_schedules(n, sent, sizes, options.name);
  if (options.json) {
    Json all = Json::array();
    for (const Compared& line : lines) {
      const bool never = std::isinf(line.rounds);
      all.push_back({{"schedule", line.name},
                     {"scheme", line.scheme.empty() ? Json() : Json(line.scheme)},
                     {"same", line.same},
                     {"rounds_to_consensus", never ? Json() : Json(line.rounds)},
                     {"estimated", line.estimated},
                     {"sent_per_interface", line.per_round},
                     {"sent_to_consensus", std::isinf(line.in_all) ? Json() : Json(line.in_all)},
                     {"peers", line.peers},
                     {"symmetric", line.symmetric}});
    }
    print_json(all);
    return 0;
  }
  fmt::print("{} worker{}, {} on a node, sorted by traffic until consensus\n\n", n, n == 1 ? "" : "s",
             options.workers_per_node);
  fmt::print("{:<32}{:<9}{:<12}{:<11}{:<7}{}\n", "schedule", "rounds", "sent/round", "sent/all", "peers",
             "weights");
  for (const Compared& line : lines) {
    fmt::print("{:<32}{:<9}{:<12.4g}{:<11}{:<7}{}\n", compared_name(line), rounds_text(line), line.per_round,
               std::isinf(line.in_all) ? "-" : fmt::format("{:.4g}", line.in_all), line.peers,
               line.symmetric ? "symmetric" : "directed");
  }
  fmt::print(
      "\nRounds: until the workers' distance is 1e-6 of its first value (~: estimated). Sent: times the "
      "model{}, through the network\ninterface of the node that sends most, in a round and in all these "
      "rounds. Peers: the most of one worker in a round.\n",
      unit(options));
  if (n > 2 && sizes.groups)
    fmt::print(
        "complete is an all-reduce: it sends the least, but in each round a worker waits for all {} "
        "others.\n",
        n - 1);
  print_schemes(lines, left_out);
  if (!other_rounds.empty())
    fmt::print("With a schedule's bytes, but not its rounds to consensus: {}.\n",
               fmt::join(other_rounds, ", "));
  for (const Compared& line : lines) {
    if (!line.same.empty()) fmt::print("The same as {}: {}.\n", line.name, fmt::join(line.same, ", "));
  }
  return 0;
}

void print_list(bool json) {
  if (json) {
    Json all = Json::array();
    for (const ScheduleInfo& info : known_schedules()) {
      all.push_back({{"name", info.name}, {"example", info.example}, {"summary", info.summary}});
    }
    print_json(all);
    return;
  }
  for (const ScheduleInfo& info : known_schedules()) fmt::print("{:<31}{}\n", info.name, info.summary);
}

int topology(const TopologyOptions& options) {
  if (options.name.empty() && options.workers.empty() && !options.compare) {
    print_list(options.json);
    return 0;
  }
  if (options.compare) {
    if (options.wire == kTopK)
      throw UsageError("topology --compare: --wire top-k is not allowed, because few schedules support it");
    if (options.workers.empty()) throw UsageError("topology --compare: --workers N is needed");
    const auto [first, last] = *worlds(options.workers);
    if (first != last) throw UsageError("topology --compare: --workers must be one number");
    return compare(options, first);
  }
  if (options.name.empty())
    throw UsageError("topology: the name of a schedule is needed (starling topology --list)");
  if (options.workers.empty())
    throw UsageError(fmt::format("topology {}: --workers N is needed", options.name));
  const auto [first, last] = *worlds(options.workers);
  for (const auto& [option, file] : {std::pair("--plot", options.plot), {"--fastest", options.fastest}}) {
    if (first != last && !file.empty())
      throw UsageError(fmt::format("topology {}: --workers must be one number", option));
  }
  return first == last ? one_world(options, first) : many_worlds(options, first, last);
}

}  // namespace

void add_topology(CLI::App& app, Command& command) {
  CLI::App* sub =
      app.add_subcommand("topology", "Show the neighbours and weights in every round of a schedule");
  sub->footer(
      "  starling topology base-2 --workers 6\n"
      "  starling topology --compare --workers 16\n"
      "  starling topology torus --workers 16 --plot torus.svg");
  auto options = std::make_shared<TopologyOptions>();
  CLI::Option* const name =
      sub->add_option(
             "name", options->name,
             "the schedule, such as base-2, or a file that ends in .toml or .json (default: list all)")
          ->type_name("NAME");
  CLI::Option* const workers =
      sub->add_option("--workers", options->workers,
                      "number of workers; 2-16 compares these numbers in one table")
          ->type_name("N")
          ->check([](const std::string& text) {
            return worlds(text) ? "" : fmt::format("Value {} not in range 1 to {}", text, most_workers);
          });
  add_number(*sub, "--workers-per-node", options->workers_per_node, "workers on one node (consecutive ranks)",
             "L", 1, most_workers);
  CLI::Option* const rounds =
      sub->add_option("--rounds", options->rounds,
                      "show only the first R rounds (default: 12 in tables and plots, all in JSON)")
          ->type_name("R")
          ->check(CLI::Range(1, 1'000'000));
  sub->add_option("--wire", options->wire,
                  "number format between workers; top-k: fp32 with indices, as in scheme choco")
      ->type_name("WIRE")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16", "int8", "int4", kTopK}))
      ->capture_default_str();
  add_number(*sub, "--one-in", options->one_in, "random-k and top-k: send one value in K per round", "K", 1,
             Mask::kMost);
  CLI::Option* const list = sub->add_flag("--list")->description("list the schedules, as without arguments");
  CLI::Option* const compare = sub->add_flag(
      "--compare", options->compare, "compare all schedules (and NAME) for N workers, sorted by traffic");
  rounds->needs(workers)->excludes(compare);
  for (CLI::Option* const other : {name, workers, compare}) list->excludes(other);
  sub->add_option("--plot", options->plot,
                  "write a picture of the rounds to this SVG file, and print nothing")
      ->type_name("FILE")
      ->needs(workers)
      ->excludes(compare);
  sub->add_option("--fastest", options->fastest,
                  "write NAME's graph with the fastest-mixing weights to this JSON topology, and show it")
      ->type_name("FILE.json")
      ->check([](const std::string& file) {
        return file.ends_with(".json") ? ""
                                       : fmt::format("Value {} must end in .json, as a topology does", file);
      })
      ->needs(workers)
      ->excludes(compare);
  sub->add_flag("--json", options->json, "print JSON instead of a table");
  sub->callback([options, &command] { command = [options] { return topology(*options); }; });
}

}  // namespace starling::cli
