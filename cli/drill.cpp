// starling drill RECIPE.toml --workers N: trains while workers are killed and started again.
#include "starling/train/drill.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/drill_page.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/recipe_keys.h"
#include "cli/workers.h"
#include "starling/core/error.h"
#include "starling/core/exists.h"
#include "starling/core/file.h"
#include "starling/core/text.h"
#include "starling/train/task.h"
#include "starling/train/trainer.h"

namespace starling::cli {

namespace {

constexpr int kTextColumns = 78;
constexpr std::uint64_t kMostSummary = 16 << 20;

struct DrillCommand {
  std::shared_ptr<RecipeOptions> recipe = std::make_shared<RecipeOptions>();
  int workers = 0;
  double kill_every = 3, lasts = 60, hangs = 30;  // seconds
  double stop_share = 0;
  std::uint64_t seed = 0;
  std::optional<std::string> out;
  bool json = false;
};

// Nothing is known of a run that has not finished.
DrilledRun run_in(const Recipe& recipe) {
  const ScoreInfo& score = task_of(recipe).score;
  DrilledRun run;
  run.score_name = score.name;
  const std::string path = recipe.run.out + "/summary.json";
  if (!exists(path)) return run;
  const auto summary = nlohmann::json::parse(read_text(path, kMostSummary), nullptr, false);
  if (!summary.is_object()) throw Error(path + ": this is no JSON object");
  const auto number = [&](const std::string& key) -> std::optional<double> {
    const auto found = summary.find(key);
    return found != summary.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
  };
  run.loss = number("loss");
  run.score = number(run.score_name);
  run.blocks_aborted = number("blocks_aborted");
  run.workers_lost = number("workers_lost");
  if (run.score) run.score_text = score.text(*run.score);
  return run;
}

nlohmann::ordered_json json_of(const DrillReport& report, const DrilledRun& run, std::uint64_t seed) {
  using Json = nlohmann::ordered_json;
  Json workers = Json::array();
  for (const DrillWorker& worker : report.workers) {
    Json lives = Json::array();
    for (const DrillLife& life : worker.lives) {
      Json stops = Json::array();
      for (const DrillStop& stop : life.stops) stops.push_back({stop.begin, stop.end});
      lives.push_back({{"begin", life.begin},
                       {"joined", or_null(life.joined)},
                       {"end", or_null(life.end)},
                       {"killed", life.killed},
                       {"stops", stops}});
    }
    workers.push_back({{"step", worker.step},
                       {"memory_begin", worker.memory_begin},
                       {"memory_end", worker.memory_end},
                       {"lives", lives}});
    if (report.hung) workers.back()["last_phase"] = worker.last_phase;
  }
  return {{"exit_code", report.exit_code},
          {"hung", report.hung},
          {"seconds", report.seconds},
          {"seed", seed},
          {"kills", report.kills},
          {"stops", report.stops},
          {"deaths", report.deaths},
          {"restarts", report.restarts()},
          {"rejoin_seconds", report.rejoins},
          {"blocks_aborted", or_null(run.blocks_aborted)},
          {"workers_lost", or_null(run.workers_lost)},
          {"loss", or_null(run.loss)},
          {run.score_name, or_null(run.score)},
          {"workers", workers}};
}

void print_report(const DrillReport& report, const DrilledRun& run) {
  fmt::print("{}\n", drill_text(report, kTextColumns));
  for (const Row& row : drill_figures(report, run)) fmt::print("{:<36} {}\n", row[0], row[1]);
  for (const Row& row : drill_memory(report)) {
    fmt::print("{:<36} {} at first, {} at last; {} processes, step {}\n", "memory of " + row[0], row[1],
               row[2], row[3], row[4]);
  }
}

// One line of the terminal: the workers that are there now.
std::string line_of(const DrillReport& report, double lasts) {
  std::int64_t step = 0;
  std::string there;
  for (std::size_t rank = 0; rank < report.workers.size(); ++rank) {
    step = std::max(step, report.workers[rank].step);
    there += report.there(static_cast<int>(rank)) ? '=' : '-';
  }
  return fmt::format("drill: {:.0f} s of {:.0f}, step {}, workers [{}], {} killed, {} restarts",
                     report.seconds, lasts, step, there, report.kills, report.restarts());
}

int run_drill(const DrillCommand& command) {
  refuse_two_launchers("drill");
  const Recipe recipe = read_recipe(command.recipe->file, command.recipe->overrides);
  if (!recipe.checkpoint.resume.empty())
    throw UsageError("drill: checkpoint.resume is not for a drill, which starts a run from the beginning");
  check_restarts(recipe, command.workers);
  check_recipe(recipe, command.workers, command.workers);
  DrillOptions options{
      .workers = command.workers, .arguments = {"train", command.recipe->file}, .out = recipe.run.out};
  for (const auto& [path, value] : command.recipe->overrides) {
    options.arguments.push_back("--" + path);
    options.arguments.push_back(value);
  }
  options.kill_every = of_seconds(command.kill_every);
  options.lasts = of_seconds(command.lasts);
  options.hangs = of_seconds(command.hangs);
  options.stop_share = command.stop_share;
  options.seed = command.seed;
  options.say = say_to_stderr;
  Time shown{};
  if (stderr_is_terminal()) {
    options.progress = [&](const DrillReport& report) {
      if (Clock::now() - shown < std::chrono::milliseconds(500)) return;
      shown = Clock::now();
      show_on_line(line_of(report, command.lasts));
    };
  }
  const DrillReport report = drill(options);
  if (stderr_is_terminal()) write_stderr("\n");
  const DrilledRun run = run_in(recipe);
  const std::string page = recipe.run.out + "/drill.html";
  write_text(page, drill_page("Drill of " + command.recipe->file, report, run));
  if (command.json) {
    print_json(json_of(report, run, command.seed));
  } else {
    print_report(report, run);
    fmt::print("{:<36} {}, and drill.log with the workers' messages\n", "written to", printable(page));
  }
  if (!report.hung) return report.exit_code;
  for (std::size_t rank = 0; rank < report.workers.size(); ++rank)
    say_to_stderr(fmt::format("worker {}: step {}, last phase: {}", rank, report.workers[rank].step,
                              report.workers[rank].last_phase));
  throw Error(fmt::format(
      "drill: no worker has logged a step for {:g} s: the run hangs; {}/drill.log has its messages",
      command.hangs, recipe.run.out));
}

}  // namespace

void add_drill(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("drill", "Train while workers are killed and started again");
  sub->footer("  starling drill recipes/fashion-mnist.toml --workers 4");
  auto options = std::make_shared<DrillCommand>();
  add_recipe(*sub, options->recipe);
  sub->add_option("--workers", options->workers, "number of workers to start on this machine")
      ->type_name("N")
      ->required()
      ->check(CLI::Range(2, kMostLocalWorkers));
  const auto time = [&](const char* name, double& value, const char* meaning) {
    add_time(*sub, name, value, meaning, 0.001);
  };
  time("--kill-every", options->kill_every,
       "mean time between two kills, such as 500ms, 3s or 1m (default: 3s)");
  time("--for", options->lasts, "kill for this long, then let the run go on to its end (default: 1m)");
  time("--hang", options->hangs,
       "end with an error if no worker has logged a step for this long (default: 30s)");
  sub->add_option("--stop-share", options->stop_share,
                  "share of the kills that stop the worker for 1 to 10 s instead, 0 to 1 (default: 0)")
      ->type_name("SHARE")
      ->check(CLI::Range(0.0, 1.0));
  sub->add_option("--seed", options->seed, "of the random times and workers (default: 0)")->type_name("N");
  sub->add_option("--out", options->out, "output folder, in place of run.out")->type_name("DIR");
  sub->add_flag("--json", options->json, "print the outcome as JSON");
  sub->callback([sub, options, &command] {
    take_unknown_keys(*sub, *options->recipe);
    if (options->out) options->recipe->overrides.emplace_back("run.out", *options->out);
    command = [options] { return run_drill(*options); };
  });
}

}  // namespace starling::cli
