// starling bench averaging: the time to average, with each topology and with all-reduce.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/workers.h"
#include "starling/core/error.h"
#include "starling/core/log.h"
#include "starling/probe/averaging.h"
#include "starling/train/launch.h"

namespace starling::cli {

namespace {

struct AveragingCommand {
  int workers = 0;
  int rounds = AveragingOptions().rounds;
  double megabytes = 25;
  bool json = false;
};

void print(const std::vector<AveragingTime>& times, const AveragingOptions& options, int workers, bool json) {
  if (json) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const AveragingTime& time : times) {
      if (time.refused.empty()) {
        rows.push_back(
            {{"way", time.way}, {"mean", time.mean}, {"deviation", time.deviation}, {"spread", time.spread}});
      } else {
        rows.push_back({{"way", time.way}, {"refused", time.refused}});
      }
    }
    const nlohmann::ordered_json root = {{"workers", workers},
                                         {"rounds", options.rounds},
                                         {"tensors", options.tensors},
                                         {"bytes", options.bytes},
                                         {"averaging", std::move(rows)}};
    print_json(root);
    return;
  }
  fmt::print("{} workers average {} tensors of {:.3g} MB (fp32), {} rounds\n\n", workers, options.tensors,
             static_cast<double>(options.bytes) / (1 << 20), options.rounds);
  fmt::print("{:<24}{:<14}{}\n", "", "round", "deviation");
  for (const AveragingTime& time : times) {
    if (time.refused.empty()) {
      fmt::print("{:<24}{:<14}{}\n", time.way, fmt::format("{:.2f} ms", time.mean * 1e3),
                 fmt::format("{:.2f} ms", time.deviation * 1e3));
    } else {
      fmt::print("{:<24}{}\n", time.way, time.refused);
    }
  }
}

int average_as_worker(const AveragingCommand& command) {
  note_interruptions();
  World world = World::from_environment();
  const bool terminal = stderr_is_terminal();
  world.interrupted = [] { return interruption() != 0; };
  world.log = log_to_stderr(world.rank);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(std::max(1, cores / world.local_size));
  AveragingOptions options{.rounds = command.rounds,
                           .bytes = static_cast<std::size_t>(command.megabytes * (1 << 20))};
  if (terminal && world.rank == 0) options.says = show_on_line;
  const auto clear = [&] {
    if (terminal && world.rank == 0) show_on_line("");
  };
  try {
    const std::vector<AveragingTime> times = measure_averaging(world, options);
    clear();
    if (world.rank == 0) print(times, options, world.size, command.json);
    return 0;
  } catch (const Error&) {
    clear();
    if (interruption() != 0) return 128 + interruption();
    throw;
  }
}

int average_with_workers(const AveragingCommand& command) {
  refuse_two_launchers("bench averaging");
  std::vector<std::string> arguments{"bench",       "averaging",
                                     "--rounds",    fmt::format("{}", command.rounds),
                                     "--megabytes", fmt::format("{}", command.megabytes)};
  if (command.json) arguments.push_back("--json");
  return launch_workers(command.workers, arguments, say_to_stderr);
}

}  // namespace

void add_bench(CLI::App& app, Command& command) {
  CLI::App* bench = app.add_subcommand("bench", "Measure Starling on your machines");
  bench->require_subcommand(1);
  bench->footer("  starling bench averaging --workers 4");
  CLI::App* sub = bench->add_subcommand(
      "averaging", "Measure the time to average three tensors, with several topologies and with all-reduce");
  auto options = std::make_shared<AveragingCommand>();
  sub->add_option("--workers", options->workers,
                  "number of workers to start on this machine (default: the launcher's world)")
      ->type_name("N")
      ->check(CLI::Range(1, kMostLocalWorkers));
  add_number(*sub, "--rounds", options->rounds, "rounds of each topology; the default is that of the paper",
             "T", 1, 1'000'000);
  add_number(*sub, "--megabytes", options->megabytes, "size of each tensor, in MB", "MB", 0.01, 1024.0);
  sub->add_flag("--json", options->json, "print JSON instead of a table");
  sub->callback([options, &command] {
    command = [options] {
      return options->workers > 0 ? average_with_workers(*options) : average_as_worker(*options);
    };
  });
}

}  // namespace starling::cli
