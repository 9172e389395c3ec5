#include "cli/plan_report.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/chart.h"

namespace starling::cli {

namespace {

constexpr const char* kStyle = R"(
body { font: 15px/1.5 system-ui, sans-serif; max-width: 66em; margin: 2em auto; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; } h3 { font-size: 1em; margin: 1.5em 0 0.3em; }
table { border-collapse: collapse; width: 100%; font-size: 0.9em; }
th, td { text-align: right; padding: 0.2em 0.6em; border-bottom: 1px solid #ddd; }
th:nth-child(-n+2), td:nth-child(-n+2), th:last-child, td:last-child { text-align: left; }
td { white-space: nowrap; } td:last-child { white-space: normal; }
tr.recommended { background: #e5f2e5; font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: #222; }
.key { display: inline-block; width: 0.8em; height: 0.8em; margin: 0 0.3em 0 1em; }
p.note { color: #555; font-size: 0.9em; }
)";

constexpr const char* kOfAllReduce = "#c0504d";
constexpr const char* kOfGossip = "#2e7d32";

const ReportRow& recommended(const ReportWorld& world) {
  return *std::find_if(world.rows.begin(), world.rows.end(),
                       [](const ReportRow& row) { return row.recommended; });
}

// ---------------------------------------------------------------- curves

constexpr double kWidth = 900, kHeight = 320, kLeft = 60, kRight = 170, kTop = 30, kBottom = 40;

// Logarithmic, so that equal gains look equal. Without losses the curve is a straight line.
struct Axes {
  double least, most;  // workers
  double low;          // lowest effective number of workers
  double x(double workers) const {
    return kLeft + std::log(workers / least) / std::log(most / least) * (kWidth - kLeft - kRight);
  }
  double y(double worth) const {
    return kHeight - kBottom - std::log(worth / low) / std::log(most / low) * (kHeight - kTop - kBottom);
  }
};

template <class Worth>
std::string curve(const std::vector<ReportWorld>& worlds, const Axes& axes, const char* colour,
                  const std::string& name, double name_at, Worth worth) {
  std::string points, dots;
  for (const ReportWorld& world : worlds) {
    const double x = axes.x(world.workers), y = axes.y(worth(world));
    points += fmt::format("{:.1f},{:.1f} ", x, y);
    dots += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="3.5" fill="{}" stroke="{}"/>)", x, y,
                        world.extrapolated ? "#fff" : colour, colour);
  }
  return fmt::format(
      R"(<polyline points="{}" fill="none" stroke="{}" stroke-width="2"/>{}<text x="{:.1f}" y="{:.1f}">{}</text>)"
      "\n",
      points, colour, dots, kWidth - kRight + 12, name_at, name);
}

std::string curves(const std::vector<ReportWorld>& worlds) {
  double least_worth = worlds.front().workers;
  for (const ReportWorld& world : worlds) {
    for (const ReportRow* row : {&world.rows[0], &recommended(world)})
      least_worth = std::min(least_worth, world.workers * row->efficiency);
  }
  const Axes axes{.least = static_cast<double>(worlds.front().workers),
                  .most = static_cast<double>(worlds.back().workers),
                  .low = std::exp2(std::floor(std::log2(least_worth)))};
  std::string svg = fmt::format(R"(<svg viewBox="0 0 {} {}" role="img">)"
                                "\n",
                                kWidth, kHeight);
  for (double worth = axes.low; worth <= axes.most; worth *= 2) {
    const double y = axes.y(worth);
    svg += fmt::format(
        R"(<line x1="{0}" x2="{1}" y1="{2:.1f}" y2="{2:.1f}" stroke="#ddd"/><text x="{3}" y="{4:.1f}" text-anchor="end">{5:.7g}</text>)"
        "\n",
        kLeft, kWidth - kRight, y, kLeft - 8, y + 4, worth);
  }
  for (const ReportWorld& world : worlds)
    svg += fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>)", axes.x(world.workers),
                       kHeight - kBottom + 20, world.workers);
  svg += fmt::format(R"(<text x="{:.1f}" y="{}" text-anchor="middle">workers</text>)"
                     "\n",
                     (kLeft + kWidth - kRight) / 2, kHeight - 4);
  // Moves names apart that would overlap.
  const double best_y = axes.y(worlds.back().workers * recommended(worlds.back()).efficiency) + 4;
  const double reduced_y =
      std::max(axes.y(worlds.back().workers * worlds.back().rows[0].efficiency) + 4, best_y + 16);
  svg += curve(worlds, axes, "#999", "nothing lost", std::min(axes.y(axes.most) + 4, best_y - 16),
               [](const ReportWorld& world) { return 1.0 * world.workers; });
  svg += curve(worlds, axes, kOfGossip, "recommended", best_y,
               [](const ReportWorld& world) { return world.workers * recommended(world).efficiency; });
  svg += curve(worlds, axes, kOfAllReduce, "all-reduce", reduced_y,
               [](const ReportWorld& world) { return world.workers * world.rows[0].efficiency; });
  return svg + "</svg>\n";
}

// ---------------------------------------------------------------- one iteration

const char* colour_of(Bar::What what) {
  switch (what) {
    case Bar::What::forward:
      return "#4f81bd";
    case Bar::What::backward:
      return "#8064a2";
    case Bar::What::update:
      return "#2e7d32";
    case Bar::What::link:
      return "#e0913a";
  }
  return "";
}

// Two lanes, one below the other, from `top` on: the worker and its link.
std::string lanes(const Iteration& one, const std::string& name, double top, double seconds) {
  const double scale = (kWidth - 140 - 10) / seconds;
  std::string svg =
      fmt::format(R"(<text x="0" y="{:.0f}" font-weight="600">{}</text>)"
                  R"(<text x="0" y="{:.0f}">computes</text><text x="0" y="{:.0f}">on the link</text>)"
                  "\n",
                  top + 12, name, top + 36, top + 62);
  for (const Bar& bar : one.bars) {
    const double begin = std::max(0.0, bar.begin), end = std::min(one.seconds, bar.end);
    if (end <= begin) continue;
    const double y = top + (bar.what == Bar::What::link ? 48 : 22);
    const std::string block = bar.block < 0 ? "" : fmt::format(" of block {}", bar.block);
    const char* const what = bar.what == Bar::What::forward    ? "forward"
                             : bar.what == Bar::What::backward ? "backward"
                             : bar.what == Bar::What::update   ? "update"
                                                               : "transfer";
    svg += fmt::format(
        R"(<rect x="{:.2f}" y="{:.0f}" width="{:.2f}" height="20" fill="{}" stroke="#fff" stroke-width="0.5"><title>{}{}: {:.2f} ms</title></rect>)",
        140 + begin * scale, y, (end - begin) * scale, colour_of(bar.what), what, block,
        (bar.end - bar.begin) * 1e3);
  }
  const double end = 140 + one.seconds * scale;
  return svg + fmt::format(R"(<line x1="{0:.2f}" x2="{0:.2f}" y1="{1:.0f}" y2="{2:.0f}" stroke="#222"/>)"
                           R"(<text x="{0:.2f}" y="{3:.0f}" text-anchor="end">{4:.2f} ms</text>)"
                           "\n",
                           end, top + 18, top + 72, top + 12, one.seconds * 1e3);
}

std::string iteration(const ReportWorld& world) {
  const double seconds = std::max(world.all_reduce.seconds, world.recommended.seconds);
  const ReportRow& best = recommended(world);
  std::string key;
  for (const auto& [what, name] : {std::pair{Bar::What::forward, "data and forward"},
                                   {Bar::What::backward, "backward"},
                                   {Bar::What::update, "update"},
                                   {Bar::What::link, "on the link"}})
    key += fmt::format(R"(<span class="key" style="background:{}"></span>{})", colour_of(what), name);
  return fmt::format(
      "<h3>One iteration of all-reduce, and one of what is recommended</h3>\n<p class=\"note\">{}</p>\n"
      "<svg viewBox=\"0 0 {} 165\" role=\"img\">\n{}{}</svg>\n",
      key, kWidth, lanes(world.all_reduce, "all-reduce", 0, seconds),
      lanes(world.recommended, escaped(best.schedule + ", " + best.wire), 88, seconds));
}

// ---------------------------------------------------------------- tables

std::string table(const ReportWorld& world) {
  std::string html =
      "<table>\n<tr><th>schedule</th><th>wire</th><th>step</th><th>80 % of steps</th><th>efficiency</th>"
      "<th>speed-up</th><th>held up by</th></tr>\n";
  for (const ReportRow& row : world.rows) {
    html += fmt::format(
        "<tr{}><td>{}</td><td>{}</td><td>{:.2f} ms</td><td>{:.2f} to {:.2f} ms</td><td>{}</td>"
        "<td>{}</td><td>{}</td></tr>\n",
        row.recommended ? " class=\"recommended\"" : "", escaped(row.schedule), row.wire, row.step * 1e3,
        row.low * 1e3, row.high * 1e3, row.efficiency_text, row.speed_up_text, escaped(row.bottleneck));
  }
  return html + "</table>\n";
}

std::string section(const ReportWorld& world) {
  std::string html = fmt::format("<h2>{} workers on {} hosts{}</h2>\n", world.workers, world.hosts,
                                 world.extrapolated ? " (extrapolated)" : "");
  html += "<ul>\n";
  for (const std::string& sentence : world.advice) html += fmt::format("<li>{}</li>\n", escaped(sentence));
  html += "</ul>\n" + iteration(world) + "<h3>All schedules</h3>\n" + table(world);
  return html;
}

}  // namespace

std::string html_report(const std::vector<ReportWorld>& worlds, const std::string& profile,
                        const std::string& knee) {
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>Starling: "
      "plan</title>\n"
      "<style>{}</style>\n</head>\n<body>\n<h1>How long a training step will take</h1>\n"
      "<p>From what was measured in {}, for all-reduce and for gossip with the schedules below. The step is "
      "one "
      "iteration, in the mean; the efficiency is the part of it in which a worker computes; the speed-up is "
      "over "
      "all-reduce.</p>\n",
      kStyle, escaped(profile));
  if (worlds.size() > 1) {
    html +=
        "<h2>What more workers are worth</h2>\n<p>Upwards: how many workers' work gets done by so many "
        "workers, which is their number times the efficiency. Both axes double from line to line; hollow "
        "points are "
        "extrapolated.</p>\n" +
        curves(worlds) + fmt::format("<p>{}</p>\n", escaped(knee));
  }
  for (const ReportWorld& world : worlds) html += section(world);
  html +=
      "<p class=\"note\">In the pictures of one iteration all times are means, nothing varies, and the link "
      "is as "
      "busy as the host's that is busiest. What is on the link may have begun in the iteration before. "
      "Extrapolated: for another number of workers than was "
      "measured, on hosts like those that were.</p>\n"
      "</body>\n</html>\n";
  return html;
}

}  // namespace starling::cli
