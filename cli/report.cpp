// starling report RUN...: the curves and figures of runs, side by side in one HTML page.
#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/chart.h"
#include "cli/commands.h"
#include "cli/run_charts.h"
#include "cli/run_report.h"
#include "starling/core/error.h"
#include "starling/core/file.h"
#include "starling/core/text.h"

namespace starling::cli {

namespace {

struct ReportOptions {
  std::vector<std::string> folders;
  std::string out;
};

constexpr int kColumns = 78, kRows = 14;  // of the curve in the terminal

int report(const ReportOptions& options) {
  if (options.folders.size() > kMostLines)
    throw UsageError(
        fmt::format("report: {} runs: at most {} fit into one page", options.folders.size(), kMostLines));
  std::map<std::string, std::string> scores;
  for (const TaskInfo* task : known_tasks()) scores.emplace(task->name, task->score.name);
  std::vector<RunFolder> runs;
  for (const std::string& folder : options.folders) runs.push_back(read_run_folder(folder, scores));
  const std::string out = options.out.empty() ? options.folders.front() + "/report.html" : options.out;
  write_text(out, run_report(runs));
  fmt::print("{}\nwritten to {}: open it in a browser\n",
             chart_text(loss_chart(runs, names_of(runs)), kColumns, kRows), printable(out));
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("report", "Draw the curves of runs side by side in one HTML page");
  sub->footer("  starling report out/demo/fashion-mnist/starling out/demo/fashion-mnist/all-reduce");
  auto options = std::make_shared<ReportOptions>();
  sub->add_option("runs", options->folders, "output folders of `starling train` or `starling simulate`")
      ->type_name("RUN")
      ->required();
  sub->add_option("--out", options->out, "output file (default: report.html in the first folder)")
      ->type_name("FILE");
  sub->callback([options, &command] { command = [options] { return report(*options); }; });
}

}  // namespace starling::cli
