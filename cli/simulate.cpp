// starling simulate RECIPE.toml --workers N: the run on a simulated cluster, in virtual time.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/chart.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/profiles.h"
#include "cli/recipe_keys.h"
#include "cli/workers.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/text.h"
#include "starling/optim/schemes/table.h"
#include "starling/train/lines_file.h"
#include "starling/train/metrics.h"
#include "starling/train/trainer.h"
#include "starling/train/virtual_cluster.h"

namespace starling::cli {

namespace {

using Json = nlohmann::ordered_json;

struct SimulateOptions {
  std::shared_ptr<RecipeOptions> recipe = std::make_shared<RecipeOptions>();
  int workers = 0;
  std::string profile, compute;
  double gradient = 0.1, cv = 0, straggler = 1;
  double gigabits = 1, latency = 1e-4, link_cv = 0, slow_link = 1;
  std::optional<double> look_every;
  std::optional<std::string> out;
  bool json = false;
  bool check = false;
};

VirtualCluster cluster_of(const SimulateOptions& options, const Recipe& recipe) {
  const auto seed = static_cast<std::uint64_t>(recipe.run.seed);
  if (options.profile.empty()) {
    if (options.workers == 0)
      throw UsageError("simulate: --workers N, or --profile FILE with its measured workers, is needed");
    return {.network =
                even_network(options.workers, options.gigabits * 1e9 / 8, options.latency, options.slow_link),
            .gradient =
                even_compute(options.gradient, options.cv, options.straggler, recipe.train.accumulate, seed),
            .link_cv = options.link_cv};
  }
  const Profile profile = whole_profile(options.profile, options.compute);
  return cluster_of(profile, options.workers == 0 ? profile.workers() : options.workers, seed);
}

Json to_json(const Look& look, const ScoreInfo& score) {
  Json json{{"seconds", look.seconds},
            {"gradients", look.gradients},
            {"epochs", look.epochs},
            {"bytes_sent", look.bytes_sent},
            {"loss", look.loss},
            {"loss_least", look.loss_least},
            {"loss_most", look.loss_most},
            {"lr", look.lr},
            {"waiting_share", look.waiting_share},
            {"test_loss", look.test_loss},
            {score.name, look.score},
            {"consensus_distance", look.consensus_distance}};
  if (look.gossip) json["rate"] = look.gossip->rate, json["longest_gap"] = look.gossip->longest_gap;
  return json;
}

// The cluster's options, for `starling report`.
Json to_json(const SimulateOptions& options, int workers, double look_every) {
  Json json{{"workers", workers}};
  if (options.profile.empty()) {
    json.update({{"gradient", options.gradient},
                 {"cv", options.cv},
                 {"straggler", options.straggler},
                 {"gigabits", options.gigabits},
                 {"latency", options.latency},
                 {"link_cv", options.link_cv},
                 {"slow_link", options.slow_link}});
  } else {
    json["profile"] = options.profile;
    if (!options.compute.empty()) json["compute"] = options.compute;
  }
  json["look_every"] = look_every;
  return json;
}

constexpr int kLookedAt = 100;  // gradients of worker 0 between two evaluations, by default

double look_every(const VirtualCluster& cluster) {
  double seconds = 0;
  for (int k = 0; k < kLookedAt; ++k) {
    const GradientTime one = cluster.gradient(0, k);
    seconds += one.before + one.backward + one.update;
  }
  return seconds;
}

void print(const Look& look, const ScoreInfo& score) {
  fmt::print("{:>10.2f} {:>10} {:>8.2f} {:>12.1f} {:>9.4f} {:>9.4f} {:>10} {:>11.3g}\n", look.seconds,
             look.gradients, look.epochs, static_cast<double>(look.bytes_sent) / 1e6, look.loss,
             look.test_loss, score.text(look.score), look.consensus_distance);
  std::fflush(stdout);
}

// Loss and score, against time and against the bytes sent.
std::string plot(const std::string& title, const ScoreInfo& score, const std::vector<Look>& looks) {
  ChartLine loss{.name = "all workers"}, tests{.name = "average model"};
  for (const Look& look : looks) {
    const double shown = score.shown(look.score);
    loss.points.push_back({look.seconds, look.loss, look.loss_least, look.loss_most});
    tests.points.push_back({look.seconds, shown, shown, shown});
  }
  const auto against_bytes = [&](ChartLine line) {
    for (std::size_t i = 0; i < looks.size(); ++i)
      line.points[i].x = static_cast<double>(looks[i].bytes_sent) / 1e6;
    return line;
  };
  const Chart losses{.title = "Training loss", .x = "virtual seconds", .y = "loss", .from_zero = false};
  const Chart scores{.title = fmt::format("Test {} of the average model", score.name),
                     .x = losses.x,
                     .y = fmt::format("{}{}", score.name, score.percent ? ", %" : ""),
                     .from_zero = false};
  std::vector<Chart> charts = {losses, scores, losses, scores};
  charts[0].lines = {loss}, charts[2].lines = {against_bytes(loss)};
  charts[1].lines = {tests}, charts[3].lines = {against_bytes(tests)};
  charts[2].x = charts[3].x = "sent by all workers, MB";
  return charts_svg(title, charts);
}

// Makes the folder ready. A run of processes, which may have taken days, is not written over.
void make_ready(const std::string& out) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::exists(out + "/metrics.jsonl", error))
    throw UsageError(fmt::format("{} holds a run of `starling train`: give another folder (--out)", out));
  fs::create_directories(out, error);
  if (error) throw Error(fmt::format("{}: cannot be made: {}", out, error.message()));
  const std::string summary = out + "/summary.json";  // of an earlier run
  fs::remove(summary, error);
  if (error) throw Error(fmt::format("{}: cannot be removed: {}", summary, error.message()));
}

int simulate(const SimulateOptions& options) {
  Recipe recipe = read_recipe(options.recipe->file, options.recipe->overrides);
  const ScoreInfo& score = task_of(recipe).score;
  const VirtualCluster cluster = cluster_of(options, recipe);
  const double every = options.look_every ? *options.look_every : look_every(cluster);
  check_simulated(recipe, cluster, every);
  if (options.check) return 0;
  check_machine(recipe);
  make_ready(recipe.run.out);
  if (!options.json) {
    fmt::print("{:>10} {:>10} {:>8} {:>12} {:>9} {:>9} {:>10} {:>11}\n", "seconds", "gradients", "epochs",
               "sent, MB", "loss", "test loss", score.name, "distance");
  }
  std::vector<Look> looks;
  LinesFile lines(recipe.run.out + "/simulate.jsonl", warn_to_stderr);
  lines.keep("");
  const Summary summary = train(recipe, cluster, every, [&](const Look& look) {
    looks.push_back(look);
    const std::string line = to_json(look, score).dump() + "\n";
    lines.append(line);
    if (options.json) {
      fmt::print("{}", line);
    } else {
      print(look, score);
    }
  });
  bool written = true;
  const auto write = [&](const char* name, const std::string& text) {
    try {
      write_text(recipe.run.out + name, text);
    } catch (const Error& error) {
      warn_to_stderr(Level::warning, error.what());
      written = false;
    }
  };
  write("/recipe.toml", print_recipe(recipe));
  write("/cluster.json", json_text(to_json(options, cluster.workers(), every)));
  const auto& m = recipe.mixing;
  write("/simulate.svg",
        plot(fmt::format("{} workers, {}{}, {}", cluster.workers(), m.scheme,
                         scheme_info(m.scheme).uses_topology() ? ", " + m.topology : "", m.wire),
             score, looks));
  write("/summary.json", to_json(summary));  // the last one: the run is whole
  if (!options.json && written)
    fmt::print("written to {}/simulate.jsonl, simulate.svg\n", printable(recipe.run.out));
  return 0;
}

}  // namespace

void add_simulate(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("simulate", "Train on a simulated cluster, in virtual time");
  sub->footer(
      "  starling simulate recipes/fashion-mnist.toml --workers 16 --straggler 2 --out out/simulated");
  auto options = std::make_shared<SimulateOptions>();
  add_recipe(*sub, options->recipe);
  sub->add_option("--workers", options->workers,
                  "number of workers, each on its own host; with --profile, on hosts like the measured ones")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  const auto profile = sub->add_option("--profile", options->profile,
                                       "profile of the measured cluster and compute times (docs/planner.md)")
                           ->type_name("FILE");
  sub->add_option(
         "--compute", options->compute,
         "profile of the compute from `starling train --profile-out`, in place of the compute in --profile")
      ->type_name("FILE")
      ->needs(profile);
  const auto number = [&](const char* name, double& value, const char* help, double least, double most) {
    add_number(*sub, name, value, help, "X", least, most)->excludes(profile);
  };
  number("--gradient", options->gradient, "mean seconds of a gradient", 1e-6, 1e4);
  number("--cv", options->cv, "coefficient of variation of these seconds, lognormal", 0, 10);
  number("--straggler", options->straggler, "factor of worker 0's compute time", 1e-3, 1e3);
  number("--gigabits", options->gigabits, "rate of a host's interface in each direction, in Gbit/s", 1e-6,
         1e6);
  number("--latency", options->latency, "latency between hosts, in seconds", 0, 1e3);
  number("--link-cv", options->link_cv, "coefficient of variation of both rate and latency, lognormal", 0,
         10);
  number("--slow-link", options->slow_link, "factor of worker 0's time on its interface", 1e-3, 1e3);
  sub->add_option(
         "--look-every", options->look_every,
         "virtual seconds between evaluations of the average model (default: the time of 100 gradients)")
      ->type_name("S")
      ->check(CLI::Range(1e-6, 1e9));
  sub->add_option("--out", options->out,
                  "output folder for simulate.jsonl and simulate.svg, in place of run.out")
      ->type_name("DIR");
  sub->add_flag("--json", options->json, "print a line of JSON for each evaluation instead of a table");
  sub->add_flag("--check", options->check, "check all settings, but not the data, and stop");
  sub->callback([sub, options, &command] {
    take_unknown_keys(*sub, *options->recipe);
    if (options->out) options->recipe->overrides.emplace_back("run.out", *options->out);
    command = [options] { return simulate(*options); };
  });
}

}  // namespace starling::cli
