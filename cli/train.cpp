// starling train RECIPE.toml: trains, as one worker or, with --workers N, by starting N of them on this machine.
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/commands.h"
#include "starling/core/error.h"
#include "starling/train/launch.h"
#include "starling/train/progress.h"
#include "starling/train/trainer.h"
#include "starling/world/environment.h"

namespace starling::cli {

namespace {

struct TrainOptions {
  std::string recipe;
  int workers = 0;
  std::optional<std::string> out, checkpoint_every, resume;
  bool json = false;
  bool print_config = false;
  Overrides overrides;
};

void write_stderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void print_summary(const Summary& s, const std::string& out) {
  fmt::print("test accuracy, average model   {:.2f} %\n", 100 * s.accuracy);
  fmt::print("test accuracy, worst worker    {:.2f} %\n", 100 * s.worst_accuracy);
  fmt::print("time                           {:.1f} s, {:.0f} % of it waiting\n", s.seconds,
             100 * s.waiting_share);
  fmt::print("sent per worker                {:.1f} MB{}\n",
             static_cast<double>(s.bytes_sent_per_worker) / 1e6, s.bytes_computed ? " (computed)" : "");
  fmt::print("consensus distance             {:.3g}\n", s.consensus_distance);
  if (s.workers_lost > 0) fmt::print("workers lost                   {} of {}\n", s.workers_lost, s.workers);
  fmt::print("written to                     {}/summary.json, metrics.jsonl\n", out);
}

int train_as_worker(const Recipe& recipe, bool json) {
  note_interruptions();
  const bool terminal = isatty(STDERR_FILENO) != 0;
  ProgressLine line(terminal, write_stderr);
  World world = World::from_environment();
  world.log = [rank = world.rank, terminal](Level level, const std::string& message) {
    if (level < Level::warning) return;
    write_stderr(fmt::format("{}starling[{}]: {}\n", terminal ? "\r\x1b[K" : "", rank, message));
  };
  limit_threads(recipe, world);
  Observer observer{.progress = {},
                    .evaluated = [&](const std::string& text) { line.message(text); },
                    .interrupted = [] { return interruption() != 0; }};
  if (world.rank == 0)
    observer.progress = [&](const Progress& progress) { line.show(progress, Clock::now()); };
  try {
    const Result result = train(recipe, world, observer);
    if (!result.speaks) return 0;
    if (json) {
      fmt::print("{}", to_json(result.summary));
    } else {
      print_summary(result.summary, recipe.run.out);
    }
    return 0;
  } catch (const Interrupted&) {
    line.end();
    return 128 + interruption();
  } catch (const Error&) {
    line.end();
    // A neighbour that was told to end makes an all-reduce fail before the signal is looked at.
    if (interruption() != 0) return 128 + interruption();
    throw;
  }
}

int train_with_workers(const TrainOptions& options, const Recipe& recipe) {
  const Variables variable = process_variables();
  const std::string launcher = launcher_name(variable);
  if (launcher == "torchrun") {
    throw UsageError(
        "train: --workers and the environment variable RANK or WORLD_SIZE are both there: either this "
        "command "
        "starts the workers or torchrun does");
  }
  const int tasks = launcher.empty() ? 1 : read_launch(variable)->size;
  if (tasks > 1) {
    throw UsageError(
        fmt::format("train: --workers in each of the {} processes that {} has started: either this command "
                    "starts the workers or {} does",
                    tasks, launcher, launcher));
  }
  check_recipe(recipe, options.workers, options.workers);
  std::vector<std::string> arguments{"train", options.recipe};
  for (const auto& [path, value] : options.overrides) {
    arguments.push_back("--" + path);
    arguments.push_back(value);
  }
  if (options.json) arguments.push_back("--json");
  return launch_workers(options.workers, arguments,
                        [](const std::string& text) { write_stderr("starling: " + text + "\n"); });
}

int train(const TrainOptions& options) {
  const Recipe recipe = read_recipe(options.recipe, options.overrides);
  if (options.print_config) {
    fmt::print("{}", print_recipe(recipe));
    return 0;
  }
  return options.workers > 0 ? train_with_workers(options, recipe) : train_as_worker(recipe, options.json);
}

}  // namespace

void add_train(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("train", "Train as a recipe says");
  auto options = std::make_shared<TrainOptions>();
  sub->add_option("recipe", options->recipe, "a TOML file, such as recipes/fashion-mnist.toml")
      ->type_name("RECIPE.toml")
      ->required();
  sub->add_option(
         "--workers", options->workers,
         "start so many workers on this machine; without it the world is the launcher's, or one worker")
      ->type_name("N")
      ->check(CLI::Range(1, 256));
  sub->add_option("--out", options->out, "folder for metrics.jsonl and summary.json, in place of run.out")
      ->type_name("DIR");
  sub->add_option("--checkpoint-every", options->checkpoint_every,
                  "save all workers every N steps in DIR/checkpoints, in place of checkpoint.every")
      ->type_name("N");
  sub->add_option(
         "--resume", options->resume,
         "go on from this checkpoint, or from the latest in this folder, in place of checkpoint.resume")
      ->type_name("DIR");
  sub->add_flag("--json", options->json, "summary.json on stdout in place of a table");
  sub->add_flag("--print-config", options->print_config,
                "print the whole recipe, overrides included, and stop");
  Recipe defaults;
  for (const Config::Entry& key : recipe_config(defaults).entries()) {
    const std::string path = key.section + "." + key.name;
    sub->add_option_function<std::string>(
           "--" + path,
           [options, path](const std::string& value) { options->overrides.emplace_back(path, value); },
           fmt::format("{}; {} (else {})", key.help, key.allowed, key.value))
        ->type_name("")
        ->group("Keys of the recipe, over what the file says")
        ->take_last();
  }
  sub->allow_extras();  // an unknown key is answered as one in a file
  sub->callback([sub, options, &command] {
    for (const std::string& extra : sub->remaining()) {
      const std::string name = extra.substr(0, extra.find('='));
      if (!name.starts_with("--") || name.find('.') == std::string::npos) {
        throw CLI::ExtrasError("train", {extra});
      }
      options->overrides.emplace_back(name.substr(2), "");
      break;
    }
    if (options->out) options->overrides.emplace_back("run.out", *options->out);
    if (options->checkpoint_every)
      options->overrides.emplace_back("checkpoint.every", *options->checkpoint_every);
    if (options->resume) options->overrides.emplace_back("checkpoint.resume", *options->resume);
    command = [options] { return train(*options); };
  });
}

}  // namespace starling::cli
