// starling probe: measures the network between workers, as a profile that `starling plan` reads.
#include "starling/probe/probe.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/workers.h"
#include "starling/core/clock.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/text.h"
#include "starling/probe/evaluate.h"
#include "starling/probe/flows.h"
#include "starling/train/launch.h"

namespace starling::cli {

namespace {

// A worker that is silent for this long ends the probe.
constexpr std::chrono::milliseconds kSilent{15'000};

struct ProbeCommand {
  int workers = 0;
  std::string out = "profile.json";
  std::string bandwidths;
  double seconds = ProbeOptions().seconds;
};

void print_table(const ProbeResult& result, double seconds, const std::string& out) {
  const Profile& network = result.network;
  fmt::print("{} workers on {} host{}, measured in {:.1f} s\n\n", network.workers(), network.hosts.size(),
             network.hosts.size() == 1 ? "" : "s", seconds);
  const bool several = network.hosts.size() > 1;
  const auto rate = [&](double value) { return several ? rate_text(value) : "-"; };
  std::size_t width = 4;
  for (const Host& host : network.hosts) width = std::max(width, printable(host.name).size());
  fmt::print("{:<{}}  {:<14}{:<14}{}\n", "host", width, "sends", "receives", "workers");
  for (const Host& host : network.hosts) {
    fmt::print("{:<{}}  {:<14}{:<14}{}\n", printable(host.name), width, rate(host.send), rate(host.receive),
               fmt::join(host.workers, ", "));
  }
  fmt::print("\n");
  const auto line = [](const char* what, const std::string& value) { fmt::print("{:<26}{}\n", what, value); };
  if (several) line("between hosts", fmt::format("{:.3f} ms", network.latency * 1e3));
  if (std::isfinite(network.inside_rate))
    line("inside hosts",
         fmt::format("{:.3f} ms, {}", network.inside_latency * 1e3, rate_text(network.inside_rate)));
  for (const Shape& shape : network.shapes)
    line(fmt::format("with {} at once", shape.peers).c_str(),
         fmt::format("{:.0f} % of what hosts send and receive", shape.share * 100));
  for (const AllReduceTime& time : network.all_reduce)
    line(fmt::format("all-reduce of {:.2f} MB", time.bytes / 1e6).c_str(),
         fmt::format("{:.2f} ms", time.seconds * 1e3));
  fmt::print("\n");
  for (const std::string& remark : result.remarks) fmt::print("{}\n", printable(remark));
  fmt::print("written to {}\n", printable(out));
}

// A schedule of bandwidth-aware matchings (topology/custom.cpp).
std::string topology_of(const std::vector<std::vector<double>>& bandwidths) {
  std::string rows;
  for (const auto& row : bandwidths)
    rows += fmt::format("{}[{:.4g}]", rows.empty() ? "" : ",\n  ", fmt::join(row, ", "));
  return fmt::format("{{\"workers\": {}, \"bandwidth\": [\n  {}]}}\n", bandwidths.size(), rows);
}

int probe_as_worker(const ProbeCommand& command) {
  note_interruptions();
  const Time begin = Clock::now();
  World world = World::from_environment({.stalled = kSilent});
  world.interrupted = [] { return interruption() != 0; };
  const bool terminal = stderr_is_terminal();
  ProbeOptions options{.seconds = command.seconds};
  if (terminal && world.rank == 0) options.says = show_on_line;
  const auto clear = [&] {
    if (terminal) show_on_line("");
  };
  try {
    const ProbeResult result = probe(world, options);
    if (world.rank != 0) return 0;
    clear();
    write_text(command.out, print_profile(result.network));
    if (!command.bandwidths.empty()) write_text(command.bandwidths, topology_of(result.bandwidths));
    print_table(result, seconds(Clock::now() - begin), command.out);
    return 0;
  } catch (const Error& error) {
    if (interruption() != 0) return 128 + interruption();
    const auto* gone = dynamic_cast<const WorkerGone*>(&error);
    if (gone != nullptr && world.rank != (gone->rank == 0 ? 1 : 0)) return 1;  // one speaks for all
    clear();
    throw;
  }
}

int probe_with_workers(const ProbeCommand& command) {
  refuse_two_launchers("probe");
  std::vector<std::string> arguments = {"probe", "--out", command.out, "--seconds",
                                        fmt::format("{}", command.seconds)};
  if (!command.bandwidths.empty()) arguments.insert(arguments.end(), {"--bandwidths", command.bandwidths});
  // The workers themselves report why the probe ended.
  return launch_workers(command.workers, arguments, [](const std::string&) {});
}

}  // namespace

void add_probe(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("probe", "Measure the network between workers for `starling plan`");
  sub->footer("  starling probe --workers 4 --out profile.json");
  auto options = std::make_shared<ProbeCommand>();
  sub->add_option("--workers", options->workers,
                  "number of workers to start on this machine (default: the launcher's world)")
      ->type_name("N")
      ->check(CLI::Range(2, kMostLocalWorkers));
  sub->add_option("--out", options->out, "output file of the profile, written by rank 0")
      ->type_name("FILE")
      ->capture_default_str();
  sub->add_option("--bandwidths", options->bandwidths,
                  "also write a topology that prefers fast links, for --topology, to this file (rank 0)")
      ->type_name("FILE.json")
      ->check([](const std::string& file) {
        return file.ends_with(".json") ? ""
                                       : fmt::format("Value {} must end in .json, as a topology does", file);
      });
  add_number(*sub, "--seconds", options->seconds,
             "budget of all streams together, in seconds; each takes 0.5 at most, exchanges 1", "S", 0.1,
             3600.0);
  sub->callback([options, &command] {
    command = [options] {
      return options->workers > 0 ? probe_with_workers(*options) : probe_as_worker(*options);
    };
  });
}

}  // namespace starling::cli
