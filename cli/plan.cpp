// starling plan --profile network.json --compute compute.json: the predicted time of a step, with
// every schedule, wire and number of workers.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/plan_report.h"
#include "cli/planned_world.h"
#include "cli/profiles.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/kernels/wire.h"
#include "starling/optim/options.h"
#include "starling/optim/sent_size.h"
#include "starling/train/planned_scheme.h"

namespace starling::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostPlanned = 1024;
// Least part of the ideal gain for which more workers are worth it.
constexpr double kWorthIt = 0.5;

struct PlanOptions {
  std::string profile;
  std::string compute;  // the other half, if the profile is a network alone
  std::string workers;  // "8..1024" or "8,12,16"; empty: as measured
  std::string scheme = Options{}.scheme.name;
  std::vector<std::string> wires;  // empty: the default ones that the scheme takes
  int iterations = 60;
  int warm_up = 20;
  double failing = 6.5;  // of 1000 hosts per day
  Question question;     // the rest of the question
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

// The last number of workers up to which each increase has brought at least kWorthIt of the ideal
// gain. Nothing if all increases have.
template <class ForecastOf>
std::optional<int> knee(const std::vector<PlannedWorld>& worlds, const ForecastOf& forecast_of) {
  const PlannedWorld* last = &worlds[0];
  for (const PlannedWorld& world : worlds) {
    const double more = static_cast<double>(world.n) / last->n;
    const double gained = more * forecast_of(*last).step / forecast_of(world).step;
    if (gained - 1 < kWorthIt * (more - 1)) return last->n;
    last = &world;
  }
  return std::nullopt;
}

Json json_of(const Forecast& outcome, const PlannedWorld& world, Mixing mixing = Mixing::ahead) {
  const Banded part = efficiency(outcome), times = speed_up(outcome, world);
  return {{"step", outcome.step},        {"low", outcome.low},
          {"high", outcome.high},        {"efficiency", part.mean},
          {"efficiency_low", part.low},  {"efficiency_high", part.high},
          {"speed_up", times.mean},      {"speed_up_low", times.low},
          {"speed_up_high", times.high}, {"bottleneck", bottleneck(outcome, world.network, mixing)}};
}

Json json_of(const PlannedWorld& world) {
  Json rows = Json::array();
  for (const Candidate& row : world.rows) {
    Json line = {{"schedule", row.schedule}, {"wire", name_of(row.wire)}};
    line.update(json_of(row.outcome, world, world.mixing));
    rows.push_back(std::move(line));
  }
  const Candidate& best = world.recommended();
  Json all = {
      {"workers", world.n},
      {"extrapolated", !world.measured},
      {"all_reduce", json_of(world.all_reduce, world)},
      {"gossip", std::move(rows)},
      {"recommended",
       {{"schedule", best.schedule},
        {"wire", name_of(best.wire)},
        {"scheme", recommended_scheme(world)},
        {"block_bytes", world.sizes.empty() ? Json() : Json(world.block_bytes)},
        {"all_reduce_is_as_good", all_reduce_is_as_good(world)}}},
      {"lost_to_failures", {{"all_reduce", world.lost_to_restarts}, {"gossip", world.lost_to_absence}}},
      {"block_sizes", Json::array()},
      {"advice", advice(world)}};
  if (world.inside) all[scheme_planned_as(Mixing::inside)] = json_of(*world.inside, world, Mixing::inside);
  for (const auto& [bytes, outcome] : world.sizes)
    all["block_sizes"].push_back({{"block_bytes", bytes}, {"step", outcome.step}});
  for (const auto& [wire, outcome] : world.asynchronous) {
    all["asynchronous"]["step"] = outcome.step.step;
    all["asynchronous"]["rate"][name_of(wire)] = outcome.rate;
  }
  if (world.one_host) all["one_host"] = json_of(*world.one_host, world);
  return all;
}

// The options that are not the defaults: ", scheme atc, every 4".
std::string scheme_text(const Options& planned) {
  const Options standard;
  std::string text;
  if (planned.scheme.name != standard.scheme.name) text += fmt::format(", scheme {}", planned.scheme.name);
  for (const auto& [name, value, other] : {std::tuple("one in", planned.one_in, standard.one_in),
                                           {"every", planned.every, standard.every},
                                           {"a mean every", planned.mean_every, standard.mean_every}}) {
    if (value != other) text += fmt::format(", {} {}", name, value);
  }
  return text;
}

void print_table(const PlannedWorld& world, int measured_workers) {
  const std::size_t hosts = world.network.hosts.size();
  fmt::print("{} worker{} on {} host{}{}{}\n\n", world.n, world.n == 1 ? "" : "s", hosts,
             hosts == 1 ? "" : "s",
             world.measured ? "" : fmt::format(" (extrapolated: {} were measured)", measured_workers),
             scheme_text(world.planned));
  const auto print_row = [](const auto&... cells) {
    fmt::print("{:<22}{:<7}{:<13}{:<26}{:<13}{:<14}{}\n", cells...);
  };
  print_row("schedule", "wire", "step", "of 10 to 90 %", "efficiency", "speed-up", "bottleneck");
  const auto print_forecast = [&](const std::string& schedule, Wire wire, const Forecast& outcome,
                                  Mixing mixing = Mixing::ahead) {
    print_row(schedule, name_of(wire), fmt::format("{:.2f} ms", outcome.step * 1e3),
              fmt::format("{:.2f} to {:.2f} ms", outcome.low * 1e3, outcome.high * 1e3),
              efficiency_text(outcome), speed_up_text(outcome, world),
              bottleneck(outcome, world.network, mixing));
  };
  print_forecast("all-reduce", Wire::fp32, world.all_reduce);
  for (const Candidate& row : world.rows) print_forecast(row.schedule, row.wire, row.outcome, world.mixing);
  if (world.one_host) print_forecast("one host alone", Wire::fp32, *world.one_host);
  fmt::print("\n{}\n\n", fmt::join(advice(world), "\n"));
}

int plan(const PlanOptions& options) {
  const Profile profile = whole_profile(options.profile, options.compute);
  const std::vector<int> numbers =
      options.workers.empty() ? std::vector{profile.workers()} : *numbers_of_workers(options.workers);
  Question question = options.question;
  for (const std::string& wire : options.wires) question.wires.push_back(wire_named(wire));
  question.options.scheme = options.scheme;
  const Options& planned = question.options;
  if (!options.html.empty() && (mixing_of(planned.scheme) != Mixing::ahead ||
                                steps_between_exchanges(planned) > 1 || planned.mean_every > 0))
    throw UsageError(
        "--html draws steps that send ahead in each step: leave out --scheme, --every and --mean-every");
  question.run = {.iterations = options.warm_up + options.iterations, .warm_up = options.warm_up};
  question.failures.rate = failures_a_second(options.failing);
  std::vector<PlannedWorld> worlds;
  for (const int n : numbers) worlds.push_back(planned_world(profile, n, question));

  const auto best_knee = knee(worlds, [](const PlannedWorld& world) { return world.recommended().outcome; });
  const auto reduced_knee = knee(worlds, [](const PlannedWorld& world) { return world.all_reduce; });
  const auto up_to = [&](const std::optional<int>& workers) {
    return workers ? fmt::format("{} workers", *workers)
                   : fmt::format("{} workers, the largest requested number", numbers.back());
  };
  const std::string knees = fmt::format(
      "More workers bring at least {:.0f} % of the ideal gain up to {}; with all-reduce up to {}.",
      kWorthIt * 100, up_to(best_knee), up_to(reduced_knee));

  if (!options.html.empty()) write_text(options.html, html_report(worlds, profile, options.profile, knees));
  if (options.json) {
    Json root = {{"measured_workers", profile.workers()},
                 {"worlds", Json::array()},
                 {"knee", or_null(best_knee)},
                 {"knee_of_all_reduce", or_null(reduced_knee)}};
    for (const PlannedWorld& world : worlds) root["worlds"].push_back(json_of(world));
    print_json(root);
    return 0;
  }
  for (const PlannedWorld& world : worlds) print_table(world, profile.workers());
  fmt::print(
      "Step: mean time of one iteration{}; efficiency: the part of it that a worker computes; speed-up: over "
      "all-reduce.\n",
      steps_between_exchanges(planned) > 1 ? ", over those of an exchange" : "");
  if (worlds.size() > 1) fmt::print("{}\n", knees);
  fmt::print(
      "The plan does not predict the number of steps: `starling topology --compare` shows how fast each "
      "schedule mixes.\n");
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("plan", "Predict the time of a step from measurements, before the run");
  sub->footer(
      "  starling plan --profile network.json --compute compute.json\n"
      "  starling plan --profile network.json --compute compute.json --workers 8..64 --html plan.html");
  auto options = std::make_shared<PlanOptions>();
  sub->add_option("--profile", options->profile,
                  "profile of the network from `starling probe`, with or without compute (docs/planner.md)")
      ->type_name("FILE")
      ->required();
  sub->add_option(
         "--compute", options->compute,
         "profile of the compute from `starling train --profile-out`, in place of the compute in --profile")
      ->type_name("FILE");
  sub->add_option(
         "--workers", options->workers,
         "numbers of workers to plan for: 8,12,16, or 8..1024 by doubling (default: the measured number)")
      ->type_name("N")
      ->check([](const std::string& text) {
        return numbers_of_workers(text)
                   ? ""
                   : fmt::format("Value {} must be rising numbers as in 8,12,16 or 8..64, from 1 to {}", text,
                                 kMostPlanned);
      });
  sub->add_option("--topologies", options->question.schedules,
                  "schedules to compare: base-2,ring or FILE (default: those of docs/planner.md)")
      ->type_name("NAME")
      ->delimiter(',');
  sub->add_option("--wires", options->wires,
                  "wires to compare (default: fp32,bf16,int8 if the scheme takes them)")
      ->type_name("NAME")
      ->delimiter(',');
  sub->add_option("--scheme", options->scheme, "scheme whose steps are planned")
      ->type_name("NAME")
      ->capture_default_str();
  const auto add_mixing_option = [&](const std::string& name, int& value, const std::string& help,
                                     const Range& range) {
    add_number(*sub, name, value, help, "N", static_cast<int>(range.least), static_cast<int>(range.most));
  };
  Options& mixing = options->question.options;
  add_mixing_option("--one-in", mixing.one_in, "mixing.one_in: of so many values an exchange sends one",
                    ranges::one_in);
  add_mixing_option("--every", mixing.every, "mixing.every: steps from one exchange to the next",
                    ranges::every);
  add_mixing_option("--mean-every", mixing.mean_every,
                    "mixing.mean_every: steps from one exact mean of all workers to the next; 0: none",
                    ranges::mean_every);
  add_number(*sub, "--iterations", options->iterations, "number of simulated iterations", "T", 1, 10'000);
  add_number(*sub, "--warm-up", options->warm_up,
             "number of warm-up iterations before these, which are not counted", "T", 0, 10'000);
  const auto add_failure_option = [&](const std::string& name, double& value, const std::string& help) {
    add_number(*sub, name, value, help, "X", 0.0, 1e6);
  };
  add_failure_option("--failures", options->failing, "failing hosts of 1000 per day");
  add_failure_option("--checkpoint-seconds", options->question.failures.checkpoint,
                     "seconds to write a checkpoint");
  add_failure_option("--restart-seconds", options->question.failures.restart,
                     "seconds to notice a failure and restart all workers");
  add_failure_option("--away-seconds", options->question.failures.away,
                     "seconds for which a failed host is absent while the others go on");
  sub->add_flag("--json", options->json, "print JSON instead of a table");
  sub->add_option("--html", options->html, "write the plan with pictures to this HTML file")
      ->type_name("FILE");
  sub->callback([options, &command] { command = [options] { return plan(*options); }; });
}

}  // namespace starling::cli
