#include "cli/drill_page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/chart.h"
#include "cli/page.h"

namespace starling::cli {

namespace {

constexpr int kLabel = 10;  // columns of "worker 12 "

constexpr const char* kDrillStyle = R"(
.there { fill: var(--c); } .joins { fill: var(--c); opacity: 0.3; } .stopped { fill: var(--soft); }
.kill { stroke: var(--ink); stroke-width: 2; } .row { fill: var(--rule); opacity: 0.4; }
svg text { fill: var(--ink); font-size: 12px; }
td:first-child, th:first-child { text-align: left; }
)";

double end_of(const DrillLife& life, const DrillReport& report) {
  return std::min(life.end.value_or(report.seconds), report.seconds);
}

bool died(const DrillLife& life) { return life.end && (life.killed || life.status != 0); }

// The state of a worker from `begin` to `end`: x died, s stopped, = there, - not there, or nothing.
char state_in(const DrillWorker& worker, double begin, double end, const DrillReport& report) {
  char state = worker.lives.empty() || worker.lives.back().end.value_or(end) < begin ? ' ' : '-';
  for (const DrillLife& life : worker.lives) {
    if (died(life) && *life.end >= begin && *life.end < end) return 'x';
    const double middle = (begin + end) / 2;
    for (const DrillStop& stop : life.stops) {
      if (stop.begin <= middle && middle < stop.end) state = 's';
    }
    if (state != 's' && life.joined && *life.joined <= middle && middle < end_of(life, report)) state = '=';
  }
  return state;
}

std::string seconds_text(double value) { return fmt::format("{:.1f} s", value); }

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(std::ceil(q * static_cast<double>(values.size()))) - 1];
}

// The rows of workers, from the left edge at 0 s to the right one at the end.
std::string drill_svg(const DrillReport& report) {
  constexpr double kLeft = 70, kWidth = 900, kRow = 22, kBar = 14;
  const double height = kRow * static_cast<double>(report.workers.size()) + 26;
  const Axis axis = axis_of(0, std::max(report.seconds, 0.1), 8, false);
  const auto x = [&](double second) { return kLeft + kWidth * axis.share(second); };
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"who was there when\">\n",
                  kLeft + kWidth + 20, height);
  const auto bar = [&](const char* kind, int rank, double top, double begin, double end,
                       const std::string& title) {
    svg += fmt::format(
        "<rect class=\"{} {}\" x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" "
        "height=\"{}\"><title>{}</title></rect>\n",
        kind, colour_class(rank % kChartColours), x(begin), top, std::max(x(end) - x(begin), 0.0), kBar,
        escaped(title));
  };
  for (std::size_t r = 0; r < report.workers.size(); ++r) {
    const int rank = static_cast<int>(r);
    const double top = kRow * static_cast<double>(r) + 2;
    svg += fmt::format("<text x=\"0\" y=\"{}\">worker {}</text>\n", top + 12, rank);
    svg += fmt::format("<rect class=\"row\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", kLeft, top,
                       kWidth, kBar);
    for (const DrillLife& life : report.workers[r].lives) {
      const double end = end_of(life, report), joined = life.joined.value_or(end);
      bar("joins", rank, top, life.begin, joined, fmt::format("starts at {:.1f} s", life.begin));
      bar("there", rank, top, joined, end, fmt::format("there from {:.1f} to {:.1f} s", joined, end));
      for (const DrillStop& stop : life.stops) {
        const double awake = std::min(stop.end, end);
        bar("stopped", rank, top, stop.begin, awake,
            fmt::format("stopped from {:.1f} to {:.1f} s", stop.begin, awake));
      }
      if (!died(life)) continue;
      svg += fmt::format(
          "<line class=\"kill\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1}\" "
          "y2=\"{2}\"><title>{3}</title></line>\n",
          x(end), top - 1, top + kBar + 1,
          fmt::format("{} at {:.1f} s", life.killed ? "killed" : "died", end));
    }
  }
  for (const double tick : axis.ticks) {
    svg += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{} s</text>\n", x(tick),
                       height - 6, axis.text(tick));
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string drill_text(const DrillReport& report, int columns) {
  const int cells = std::max(columns - kLabel, 10);
  const double cell = report.seconds / cells;
  std::string text;
  for (std::size_t rank = 0; rank < report.workers.size(); ++rank) {
    text += fmt::format("{:<{}}", fmt::format("worker {}", rank), kLabel);
    for (int k = 0; k < cells; ++k) text += state_in(report.workers[rank], k * cell, (k + 1) * cell, report);
    text += '\n';
  }
  return text + fmt::format("{:<{}}= there, - not there, s stopped, x killed; a column is {:.2g} s\n", "",
                            kLabel, cell);
}

std::vector<Row> drill_figures(const DrillReport& report, const DrilledRun& run) {
  const auto number = [](std::optional<double> value) { return value ? fmt::format("{:.4g}", *value) : "-"; };
  const bool survived = report.exit_code == 0;
  std::string rejoin = "-";
  if (!report.rejoins.empty()) {
    rejoin =
        fmt::format("median {}, 99 % within {}, longest {}", seconds_text(quantile(report.rejoins, 0.5)),
                    seconds_text(quantile(report.rejoins, 0.99)), seconds_text(quantile(report.rejoins, 1)));
  }
  return {{"outcome", report.hung ? "the run hung"
                      : survived  ? "the run has finished"
                                  : fmt::format("the run ended with exit code {}", report.exit_code)},
          {"time", seconds_text(report.seconds)},
          {"workers killed", fmt::format("{}", report.kills)},
          {"workers stopped for a while", fmt::format("{}", report.stops)},
          {"workers that failed by themselves", fmt::format("{}", report.deaths)},
          {"restarts", fmt::format("{}", report.restarts())},
          {"from death to the next logged step", rejoin},
          {"blocks not mixed, mean of workers", number(run.blocks_aborted)},
          {"workers missing at the end", number(run.workers_lost)},
          {"training loss", number(run.loss)},
          {fmt::format("test {}, average model", run.score_name), run.score ? run.score_text : "-"}};
}

std::vector<Row> drill_memory(const DrillReport& report) {
  std::vector<Row> rows;
  for (std::size_t rank = 0; rank < report.workers.size(); ++rank) {
    const DrillWorker& worker = report.workers[rank];
    rows.push_back({fmt::format("worker {}", rank), size_text(static_cast<double>(worker.memory_begin)),
                    size_text(static_cast<double>(worker.memory_end)), fmt::format("{}", worker.lives.size()),
                    fmt::format("{}", worker.step)});
  }
  return rows;
}

std::string drill_page(const std::string& title, const DrillReport& report, const DrilledRun& run) {
  std::string html =
      fmt::format("<h1>{}</h1>\n<main>\n<h2>Who was there when</h2>\n", escaped(title)) + drill_svg(report);
  html +=
      "<p class=\"note\">Full colour: the worker trains. Pale: its process starts and joins. Grey: it is "
      "stopped. A line: it was killed, or died.</p>\n<h2>Outcome</h2>\n" +
      table({"", ""}, drill_figures(report, run), " class=\"text\"") + "<h2>Workers</h2>\n" +
      table({"", "memory at first", "memory at last", "processes", "last step"}, drill_memory(report), "") +
      "</main>\n";
  return html_page(title, kDrillStyle, html);
}

}  // namespace starling::cli
