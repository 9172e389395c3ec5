// starling train RECIPE.toml: trains, as one worker or, with --workers N, by starting N of them on
// this machine.
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/recipe_keys.h"
#include "cli/workers.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/train/launch.h"
#include "starling/train/progress.h"
#include "starling/train/trainer.h"

namespace starling::cli {

namespace {

constexpr int kMostRestarts = 1'000'000;

struct TrainOptions {
  std::shared_ptr<RecipeOptions> recipe = std::make_shared<RecipeOptions>();
  int workers = 0;
  int restarts = 0;  // of one worker
  std::optional<std::string> topology, profile, out, checkpoint_every, resume, profile_out;
  bool json = false;
  bool print_config = false;
  bool check = false;
};

void print_summary(const Summary& s, const ScoreInfo& score, const std::string& out) {
  const auto test = [&](const char* whose, double value) {
    fmt::print("{:<30} {}\n", fmt::format("test {}, {}", score.name, whose), score.text(value));
  };
  test("average model", s.score);
  test("worst worker", s.worst_score.value());
  fmt::print("time                           {:.1f} s; workers waited for {:.0f} % of it in the mean\n",
             s.seconds, 100 * s.waiting_share);
  fmt::print("sent per worker                {:.1f} MB{}\n",
             static_cast<double>(s.bytes_sent_per_worker) / 1e6, s.bytes_computed ? " (computed)" : "");
  fmt::print("consensus distance             {:.3g}\n", s.consensus_distance);
  if (s.workers_lost > 0) fmt::print("workers missing at the end     {} of {}\n", s.workers_lost, s.workers);
  fmt::print(
      "written to                     {0}/summary.json, metrics.jsonl\n"
      "its curves                     starling report {0} --out {0}/report.html\n",
      printable(out));
}

int train_as_worker(const Recipe& recipe, bool json) {
  note_interruptions();
  ProgressLine line(stderr_is_terminal() ? stderr_columns : std::function<int()>(), write_stderr);
  World world = World::from_environment();
  const Level least = level_from_environment();
  world.log = [rank = world.rank, least](Level level, const std::string& message) {
    if (level >= least) write_message(fmt::format("starling[{}]: {}", rank, message));
  };
  limit_threads(recipe, world);
  leave_phases(recipe, world);
  Observer observer{.progress = {},
                    .says = [&](const std::string& text) { line.message(printable(text)); },
                    .interrupted = [] { return interruption() != 0; }};
  if (world.rank == 0)
    observer.progress = [&](const Progress& progress) { line.show(progress, Clock::now()); };
  try {
    const Result result = train(recipe, world, observer);
    if (!result.speaks) return 0;
    if (json) {
      fmt::print("{}", to_json(result.summary));
    } else {
      print_summary(result.summary, task_of(recipe).score, recipe.run.out);
    }
    return 0;
  } catch (const RunInterrupted&) {
    line.end();
    return 128 + interruption();
  } catch (const Error&) {
    line.end();
    // A neighbour that was told to end makes an all-reduce fail before this worker checks for the
    // signal.
    if (interruption() != 0) return 128 + interruption();
    throw;
  }
}

int train_with_workers(const TrainOptions& options, const Recipe& recipe) {
  if (options.restarts > 0) check_restarts(recipe, options.workers);
  if (options.check) {
    check_settings(recipe, options.workers, options.workers);
    return 0;
  }
  refuse_two_launchers("train");
  check_recipe(recipe, options.workers, options.workers);
  std::vector<std::string> arguments{"train", options.recipe->file};
  for (const auto& [path, value] : options.recipe->overrides) {
    arguments.push_back("--" + path);
    arguments.push_back(value);
  }
  if (options.json) arguments.push_back("--json");
  return launch_workers(options.workers, arguments, say_to_stderr, {.restarts = {.most = options.restarts}});
}

int train(const TrainOptions& options) {
  const Recipe recipe = read_recipe(options.recipe->file, options.recipe->overrides);
  if (options.print_config) {
    fmt::print("{}", print_recipe(recipe));
    return 0;
  }
  if (options.restarts > 0 && options.workers == 0)
    throw UsageError(
        "train: --restart needs --workers N: another launcher restarts the workers that it starts");
  return options.workers > 0 ? train_with_workers(options, recipe) : train_as_worker(recipe, options.json);
}

}  // namespace

void add_train(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("train", "Train by a recipe");
  sub->footer(
      "  starling train recipes/fashion-mnist.toml --workers 4\n"
      "  starling train recipes/fashion-mnist.toml --workers 4 --mixing.topology ring --optimizer.lr 0.01\n"
      "  torchrun --nproc-per-node 4 --no-python starling train recipes/fashion-mnist.toml");
  auto options = std::make_shared<TrainOptions>();
  add_recipe(*sub, options->recipe);
  auto* const workers =
      sub->add_option(
             "--workers", options->workers,
             "number of workers to start on this machine (default: the launcher's world, or one worker)")
          ->type_name("N")
          ->check(CLI::Range(1, kMostLocalWorkers));
  sub->add_option("--restart", options->restarts,
                  "start a worker that dies or fails again, at most this often (default: 3; with "
                  "--workers). It takes the state of a worker that is left")
      ->type_name("[TIMES]")
      ->expected(0, 1)
      ->default_str("3")
      ->check(CLI::Range(1, kMostRestarts));
  sub->add_option("--topology", options->topology,
                  "topology, in place of mixing.topology; auto: the planner's fastest one")
      ->type_name("NAME");
  sub->add_option("--profile", options->profile,
                  "profile for --topology auto, from `starling probe`, with or without the compute of "
                  "--profile-out; missing parts are measured first. In place of mixing.profile")
      ->type_name("FILE");
  sub->add_option("--out", options->out,
                  "output folder for metrics.jsonl and summary.json, in place of run.out")
      ->type_name("DIR");
  sub->add_option("--checkpoint-every", options->checkpoint_every,
                  "save all workers every N steps in DIR/checkpoints, in place of checkpoint.every")
      ->type_name("N");
  sub->add_option(
         "--resume", options->resume,
         "resume from this checkpoint, or from the latest one in this folder, in place of checkpoint.resume")
      ->type_name("DIR");
  sub->add_option("--profile-out", options->profile_out,
                  "record the times of every worker's forward, backward and updates for `starling plan`, in "
                  "place of log.profile")
      ->type_name("FILE");
  sub->add_flag("--json", options->json, "print summary.json instead of a table");
  sub->add_flag("--print-config", options->print_config,
                "print the whole recipe, overrides included, and stop");
  sub->add_flag("--check", options->check, "check all settings, but neither data nor checkpoints, and stop")
      ->needs(workers);
  sub->callback([sub, options, &command] {
    auto& overrides = options->recipe->overrides;
    take_unknown_keys(*sub, *options->recipe);
    if (options->topology) overrides.emplace_back("mixing.topology", *options->topology);
    if (options->profile) overrides.emplace_back("mixing.profile", *options->profile);
    if (options->out) overrides.emplace_back("run.out", *options->out);
    if (options->checkpoint_every) overrides.emplace_back("checkpoint.every", *options->checkpoint_every);
    if (options->profile_out) overrides.emplace_back("log.profile", *options->profile_out);
    if (options->resume) overrides.emplace_back("checkpoint.resume", *options->resume);
    command = [options] { return train(*options); };
  });
}

}  // namespace starling::cli
