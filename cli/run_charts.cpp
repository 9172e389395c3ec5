#include "cli/run_charts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include <fmt/format.h>

namespace starling::cli {

// The switch: hidden radio buttons at the top of the page choose by CSS which charts are shown.
const char* const kRunStyle = R"(
body { max-width: 78em; }
nav { position: sticky; top: 0; background: var(--page); padding: 0.6em 0; border-bottom: 1px solid var(--rule); z-index: 1; }
nav label { border: 1px solid var(--rule); border-radius: 4px; padding: 0.15em 0.7em; margin-left: 0.3em; cursor: pointer; }
nav .key { margin-left: 1.4em; } .key.dashed { background: repeating-linear-gradient(90deg, var(--c) 0 3px, transparent 3px 5px); }
input[name=axis] { position: absolute; opacity: 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26em, 1fr)); gap: 0.8em 1.6em; margin-top: 1em; }
.by-steps, .by-seconds, .by-bytes { display: none; }
#steps:checked ~ main .by-steps, #seconds:checked ~ main .by-seconds, #bytes:checked ~ main .by-bytes { display: block; }
#steps:checked ~ nav label[for=steps], #seconds:checked ~ nav label[for=seconds], #bytes:checked ~ nav label[for=bytes] {
  border-color: var(--c0); color: var(--c0); font-weight: 600; }
#steps:focus-visible ~ nav label[for=steps], #seconds:focus-visible ~ nav label[for=seconds],
#bytes:focus-visible ~ nav label[for=bytes] { outline: 2px solid var(--c0); }
.wide { overflow-x: auto; } th:first-child, td:first-child { text-align: left; }
th { vertical-align: bottom; } td.text { font-family: ui-monospace, monospace; overflow-wrap: anywhere; }
details { margin-top: 2em; } figure { margin: 0; } figure p.note { margin: 0 0 0 5em; }
)";

namespace {

// A unit in which the largest value is easy to read.
struct Unit {
  double size;
  const char* name;
};

Unit unit_of(double most, std::initializer_list<Unit> units) {  // by rising size
  Unit chosen = *units.begin();
  for (const Unit& unit : units) {
    if (most >= 2 * unit.size) chosen = unit;
  }
  return chosen;
}
Unit byte_unit(double most) {
  return unit_of(most, {{1, "B"}, {1e3, "KB"}, {1e6, "MB"}, {1e9, "GB"}, {1e12, "TB"}});
}
Unit time_unit(double most) { return unit_of(most, {{1, "s"}, {60, "min"}, {3600, "h"}}); }

// ---------------------------------------------------------------- charts

// One value of a run against its course.
struct Measure {
  std::string title, y;
  std::function<const RunCurve&(const RunFolder&)> curve;
  std::string hint{};     // what to do if no run has it
  bool from_zero = true;  // the axis
  double scale = 1;       // of the values
};

double largest(const std::vector<RunFolder>& runs, const Measure& measure, double RunPoint::* member) {
  double most = 0;
  for (const RunFolder& run : runs) {
    for (const RunPoint& point : measure.curve(run)) most = std::max(most, point.*member);
  }
  return most;
}

std::vector<Measure> measures_of(const std::vector<RunFolder>& runs) {
  const auto member = [](RunCurve RunFolder::* curve) {
    return [curve](const RunFolder& run) -> const RunCurve& { return run.*curve; };
  };
  const std::string tests = "log.eval_every tests the average model during the run.";
  std::vector<Measure> all;
  all.push_back({"Training loss", "loss, mean of the workers", member(&RunFolder::loss), "", false});
  std::set<std::string> tasks;
  for (const RunFolder& run : runs) {
    if (!tasks.insert(run.task).second) continue;
    const ScoreInfo& score = task_named(run.task).score;
    all.push_back({.title = fmt::format("Test {} of the average model", score.name),
                   .y = fmt::format("{}{}", score.name, score.percent ? ", %" : ""),
                   .curve = [task = run.task](const RunFolder& run) -> const RunCurve& {
                     static const RunCurve kNone;
                     return run.task == task ? run.score : kNone;
                   },
                   .hint = tests,
                   .from_zero = false,
                   .scale = score.shown(1)});
  }
  all.push_back({"Test loss of the average model", "loss", member(&RunFolder::test_loss), tests, false});
  all.push_back({"Learning rate", "learning rate", member(&RunFolder::lr)});
  all.push_back(
      {"Consensus distance", "RMS distance from the mean", member(&RunFolder::consensus_distance), tests});
  Measure sent{"Sent per worker and step", "", member(&RunFolder::step_bytes)};
  const Unit unit = byte_unit(largest(runs, sent, &RunPoint::value));
  sent.y = fmt::format("{} per step", unit.name), sent.scale = 1 / unit.size;
  all.push_back(sent);
  all.push_back(
      {"Waiting for neighbours", "share of the time, %", member(&RunFolder::waiting_share), "", true, 100});
  all.push_back({"Spread over the workers", "training loss, most less least", member(&RunFolder::spread),
                 "One worker alone has none."});
  if (std::ranges::any_of(runs, [](const RunFolder& run) { return !run.distance.empty(); }))
    all.push_back(
        {"Distance from the neighbours", "RMS, asynchronous schemes", member(&RunFolder::distance)});
  return all;
}

struct Course {
  const char* id;  // in the page
  double RunPoint::* at;
  std::string x;  // the axis
  double scale;
};

std::array<Course, 3> courses_of(const std::vector<RunFolder>& runs) {
  const Measure any{"", "", [](const RunFolder& run) -> const RunCurve& { return run.loss; }};
  const Unit time = time_unit(largest(runs, any, &RunPoint::seconds));
  const Unit sent = byte_unit(largest(runs, any, &RunPoint::bytes));
  const bool is_virtual = std::ranges::any_of(runs, &RunFolder::simulated);
  return {
      Course{"steps", &RunPoint::step, "steps of a worker", 1},
      Course{"seconds", &RunPoint::seconds,
             fmt::format("time of training{}, {}", is_virtual ? " (virtual if simulated)" : "", time.name),
             1 / time.size},
      Course{"bytes", &RunPoint::bytes, fmt::format("sent per worker, {}", sent.name), 1 / sent.size}};
}

Chart chart_of(const std::vector<RunFolder>& runs, const std::vector<std::string>& names,
               const Measure& measure, const Course& course) {
  Chart chart{
      .title = measure.title, .x = course.x, .y = measure.y, .lines = {}, .from_zero = measure.from_zero};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    ChartLine line{.name = names[i], .points = {}, .colour = static_cast<int>(i)};
    for (const RunPoint& point : measure.curve(runs[i])) {
      line.points.push_back({point.*course.at * course.scale, point.value * measure.scale,
                             point.least * measure.scale, point.most * measure.scale});
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

}  // namespace

const TaskInfo& task_named(const std::string& name) {
  return **std::ranges::find(known_tasks(), name, &TaskInfo::name);
}

std::string page_head(const std::string& title, const std::string& legend) {
  return fmt::format(R"(<input type="radio" name="axis" id="steps" checked="checked"/>
<input type="radio" name="axis" id="seconds"/>
<input type="radio" name="axis" id="bytes"/>
<h1>{}</h1>
<nav>against <label for="steps">steps</label><label for="seconds">seconds</label><label for="bytes">bytes</label>{}</nav>
)",
                     escaped(title), legend);
}

std::string charts_of(const std::vector<RunFolder>& runs, const std::vector<std::string>& names) {
  const std::array<Course, 3> courses = courses_of(runs);
  std::string html = "<div class=\"charts\">\n";
  for (const Measure& measure : measures_of(runs)) {
    html += "<figure>\n";
    for (const Course& course : courses)
      html += fmt::format("<div class=\"by-{}\">{}</div>\n", course.id,
                          chart_svg(chart_of(runs, names, measure, course)));
    const bool empty =
        std::ranges::all_of(runs, [&](const RunFolder& run) { return measure.curve(run).empty(); });
    if (empty) html += fmt::format("<p class=\"note\">No run has this. {}</p>\n", measure.hint);
    html += "</figure>\n";
  }
  return html + "</div>\n";
}

std::string legend_of(const std::vector<std::string>& names) {
  std::string html;
  for (std::size_t i = 0; i < names.size(); ++i)
    html +=
        fmt::format("<span class=\"key {}\"></span>{}", colour_class(static_cast<int>(i)), escaped(names[i]));
  return html;
}

Chart loss_chart(const std::vector<RunFolder>& runs, const std::vector<std::string>& names) {
  Chart chart = chart_of(runs, names, measures_of(runs).front(), courses_of(runs)[1]);
  chart.y = "training loss";
  for (ChartLine& line : chart.lines) {
    for (ChartPoint& point : line.points) point.least = point.most = point.y;
  }
  return chart;
}

std::string table(const Row& head, const std::vector<Row>& rows, const char* cell) {
  std::string html = "<div class=\"wide\"><table>\n<tr>";
  for (const std::string& text : head) html += fmt::format("<th>{}</th>", escaped(text));
  html += "</tr>\n";
  for (const Row& row : rows) {
    html += "<tr>";
    for (const std::string& text : row) html += fmt::format("<td{}>{}</td>", cell, escaped(text));
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string size_text(double bytes) {
  const Unit unit = byte_unit(bytes);
  return fmt::format("{:.1f} {}", bytes / unit.size, unit.name);
}

}  // namespace starling::cli
