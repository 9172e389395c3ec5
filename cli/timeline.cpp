// starling timeline DIR: the timelines of a run's workers in one file, for Perfetto or
// chrome://tracing.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "starling/core/text.h"
#include "starling/train/timelines.h"

namespace starling::cli {

namespace {

struct TimelineOptions {
  std::string folder;
  std::string out;
};

int timeline(const TimelineOptions& options) {
  const std::string out = options.out.empty() ? options.folder + "/timeline.json" : options.out;
  const MergedTimeline merged = merge_timelines(options.folder, out);
  const auto there = static_cast<std::size_t>(merged.workers) - merged.missing.size();
  fmt::print("{} spans of {} of {} workers\n", merged.spans, there, merged.workers);
  fmt::print("written to {}: open it in https://ui.perfetto.dev or chrome://tracing\n", printable(out));
  if (!merged.missing.empty()) {
    constexpr std::size_t kNamed = 20;
    const std::size_t named = std::min(kNamed, merged.missing.size());
    fmt::print(
        stderr, "starling: no timeline of worker {}{}: killed, or on another host\n",
        fmt::join(merged.missing.begin(), merged.missing.begin() + static_cast<std::ptrdiff_t>(named), ", "),
        named == merged.missing.size() ? "" : fmt::format(" and {} others", merged.missing.size() - named));
  }
  if (merged.dropped > 0) {
    fmt::print(stderr,
               "starling: {} later spans did not fit: log.timeline_from and log.timeline_to choose steps\n",
               merged.dropped);
  }
  return 0;
}

}  // namespace

void add_timeline(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("timeline", "Merge the timelines of a run's workers, for Perfetto");
  sub->footer("  starling timeline out/run");
  auto options = std::make_shared<TimelineOptions>();
  sub->add_option("folder", options->folder, "output folder of a run with log.timeline = true")
      ->type_name("DIR")
      ->required();
  sub->add_option("--out", options->out, "output file (default: DIR/timeline.json)")->type_name("FILE");
  sub->callback([options, &command] { command = [options] { return timeline(*options); }; });
}

}  // namespace starling::cli
