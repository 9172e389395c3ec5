#include "cli/study_page.h"

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/page.h"
#include "cli/run_charts.h"
#include "starling/core/text.h"
#include "starling/core/tree.h"

namespace starling::cli {

namespace {

constexpr const char* kStudyStyle = R"(
tr.baseline td { font-weight: 600; } tr.first td { border-top: 2px solid var(--soft); }
td.better { color: var(--c2); font-weight: 600; } td.worse { color: var(--c1); font-weight: 600; }
td, th { white-space: nowrap; } .results td:first-child, .results th:first-child { text-align: left; }
)";

constexpr double kLevel = 0.05;                      // of a significant difference
constexpr std::size_t kMostSummaryBytes = 16 << 20;  // of a run
constexpr std::size_t kMostClasses = 100;            // in the page

using Shown = std::function<std::string(double)>;

// How the values of a measure are written.
Shown shown_as(const StudyMeasure& measure, const ScoreInfo& score) {
  if (measure.figure == &RunFigures::score || measure.figure == &RunFigures::worst_score)
    return [score](double value) { return fmt::format("{:.2f}", score.shown(value)); };
  if (measure.figure == &RunFigures::bytes) return size_text;
  if (measure.figure == &RunFigures::seconds)
    return [](double value) { return fmt::format("{:.1f} s", value); };
  return [](double value) { return fmt::format("{:.4g}", value); };
}

// It says how many of the finished runs have a finite value, unless all have one.
std::string mean_text(const StudyFigure& figure, const Shown& shown, int finished) {
  if (!figure.over_seeds) return "-";
  const Described& told = *figure.over_seeds;
  std::string text = shown(told.mean);
  if (told.deviation) text += fmt::format(" ± {}", shown(*told.deviation));
  return told.count == finished ? text : fmt::format("{}, {} of {} finite", text, told.count, finished);
}

std::string interval_text(const std::optional<Described>& told, const Shown& shown) {
  if (!told || !told->half_width) return "-";
  return fmt::format("{} to {}", shown(*told->low()), shown(*told->high()));
}

std::string p_text(std::optional<double> p) {
  if (!p) return "-";
  return *p < 1e-4 ? "< 0.0001" : fmt::format("{:.4f}", *p);
}

bool is_baseline(const Study& study, std::size_t arm) {
  return std::ranges::any_of(study.arms, [&](const Study::Arm& other) { return other.baseline == arm; });
}

// Arms by panel, each panel in the order of the file.
std::vector<std::vector<std::size_t>> panels_of(const Study& study) {
  std::vector<std::vector<std::size_t>> panels;
  for (std::size_t arm = 0; arm < study.arms.size(); ++arm) {
    panels.resize(std::max(panels.size(), study.arms[arm].panel + 1));
    panels[study.arms[arm].panel].push_back(arm);
  }
  return panels;
}

std::vector<std::size_t> varied_axes(const Study& study) {
  std::vector<std::size_t> axes;
  for (std::size_t i = 0; i < study.axes.size(); ++i) {
    if (study.axes[i].values.size() > 1) axes.push_back(i);
  }
  return axes;
}

// The varied axes that are the same, or that differ, within a panel.
std::vector<std::size_t> axes_within(const Study& study, const std::vector<std::size_t>& panel, bool differ) {
  std::vector<std::size_t> axes;
  for (const std::size_t axis : varied_axes(study)) {
    const auto same = [&](std::size_t arm) {
      return study.arms[arm].values[axis] == study.arms[panel.front()].values[axis];
    };
    if (std::ranges::all_of(panel, same) != differ) axes.push_back(axis);
  }
  return axes;
}

std::string values_text(const Study& study, std::size_t arm, const std::vector<std::size_t>& axes) {
  std::vector<std::string> parts;
  for (const std::size_t axis : axes)
    parts.push_back(fmt::format("{} {}", study.axes[axis].shown, study.arms[arm].values[axis]));
  return fmt::format("{}", fmt::join(parts, ", "));
}

struct Cell {
  std::string text;
  const char* kind = "";  // class
};

// "better" or "worse", if the difference is significant.
const char* verdict(const StudyFigure& figure, bool higher_is_better) {
  if (!figure.corrected || *figure.corrected >= kLevel) return "";
  return (figure.test->difference.mean > 0) == higher_is_better ? "better" : "worse";
}

std::vector<Cell> row_of(const Study& study, const StudyResults& results, std::size_t number,
                         const ScoreInfo& score) {
  const StudyArm& arm = results.arms[number];
  std::vector<Cell> row;
  for (const std::size_t axis : varied_axes(study)) row.push_back({study.arms[number].values[axis]});
  row.push_back({fmt::format("{} of {}", arm.finished, study.seeds.size())});
  const StudyFigure& first = arm.figures.front();
  const Shown shown = shown_as(results.measures.front(), score);
  row.push_back({mean_text(first, shown, arm.finished)});
  row.push_back({interval_text(first.over_seeds, shown)});
  if (first.test) {
    const char* const kind = verdict(first, score.higher_is_better);
    const double mean = score.shown(first.test->difference.mean);
    row.push_back({fmt::format("{:+.2f}", mean), kind});
    row.push_back({interval_text(first.test->difference, shown)});
    row.push_back({p_text(first.test->p)});
    row.push_back({p_text(first.corrected), kind});
  } else {
    row.push_back({is_baseline(study, number) ? "baseline" : "-"});
    row.insert(row.end(), 3, {"-"});
  }
  for (std::size_t m = 1; m < results.measures.size(); ++m)
    row.push_back({mean_text(arm.figures[m], shown_as(results.measures[m], score), arm.finished)});
  return row;
}

std::vector<std::string> head_of(const Study& study, const StudyResults& results, const ScoreInfo& score) {
  std::vector<std::string> head;
  for (const std::size_t axis : varied_axes(study)) head.push_back(study.axes[axis].shown);
  const std::string unit = score.percent ? ", %" : "";
  head.insert(head.end(), {"runs", results.measures.front().title + unit, "95 % interval",
                           "difference" + unit, "95 % interval", "p", "p, Holm"});
  for (std::size_t m = 1; m < results.measures.size(); ++m) {
    const bool is_score = results.measures[m].figure == &RunFigures::worst_score;
    head.push_back(results.measures[m].title + (is_score ? unit : ""));
  }
  return head;
}

std::string results_table(const Study& study, const StudyResults& results, const ScoreInfo& score) {
  std::string html = "<div class=\"wide\"><table class=\"results\">\n<tr>";
  for (const std::string& text : head_of(study, results, score))
    html += fmt::format("<th>{}</th>", escaped(text));
  html += "</tr>\n";
  for (const auto& panel : panels_of(study)) {
    for (const std::size_t arm : panel) {
      html += fmt::format("<tr class=\"{}{}\">", arm == panel.front() ? "first" : "",
                          is_baseline(study, arm) ? " baseline" : "");
      for (const Cell& cell : row_of(study, results, arm, score))
        html += fmt::format("<td class=\"{}\">{}</td>", cell.kind, escaped(cell.text));
      html += "</tr>\n";
    }
  }
  return html + "</table></div>\n";
}

std::string charts(const Study& study, const StudyResults& results) {
  std::string html;
  const auto panels = panels_of(study);
  for (const auto& panel : panels) {
    const std::vector<std::size_t> differ = axes_within(study, panel, true);
    const std::string same = values_text(study, panel.front(), axes_within(study, panel, false));
    std::vector<RunFolder> lines;
    std::vector<std::string> names;
    const auto draw = [&] {
      if (lines.empty()) return;
      html +=
          fmt::format("<h2>{}</h2>\n<p>{}</p>\n", escaped(same.empty() ? "Curves" : same), legend_of(names));
      html += charts_of(lines, names);
      lines.clear(), names.clear();
    };
    for (const std::size_t arm : panel) {
      if (results.arms[arm].finished == 0) continue;
      lines.push_back(results.arms[arm].mean);
      names.push_back(differ.empty() ? results.arms[arm].name : values_text(study, arm, differ));
      if (lines.size() == kMostLines) draw();
    }
    draw();
  }
  return html;
}

// Each worker's classes, for the first seed: once for all arms that have the same.
std::string class_tables(const Study& study) {
  std::vector<std::pair<nlohmann::json, std::string>> known;  // counts, the first arm that has them
  for (const Study::Run& run : study.runs) {
    if (run.seed != study.seeds.front() || !is_finished(study, run)) continue;
    const auto summary = nlohmann::json::parse(
        read_at_most(folder_of(study, run) + "/summary.json", kMostSummaryBytes, "summary of a run"), nullptr,
        false);
    if (!summary.is_object() || !summary.contains("class_counts")) continue;
    const nlohmann::json& counts = summary["class_counts"];
    const bool rows =
        counts.is_array() && !counts.empty() && std::ranges::all_of(counts, [](const auto& row) {
          return row.is_array() && row.size() <= kMostClasses &&
                 std::ranges::all_of(row, [](const auto& n) { return n.is_number_integer(); });
        });
    if (!rows || std::ranges::count(known, counts, &std::pair<nlohmann::json, std::string>::first) > 0)
      continue;
    known.emplace_back(counts, study.name_of(study.arms[run.arm]));
  }
  std::string html;
  for (const auto& [counts, name] : known) {
    Row head{"worker"};
    for (std::size_t c = 0; c < counts.front().size(); ++c) head.push_back(fmt::format("class {}", c));
    std::vector<Row> rows;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      Row& row = rows.emplace_back(Row{fmt::format("{}", rank)});
      for (const auto& n : counts[rank]) row.push_back(fmt::format("{}", n.get<std::int64_t>()));
    }
    html += fmt::format(
        "<details><summary>Images of each class on each worker: seed {}, {}{}</summary>\n{}</details>\n",
        study.seeds.front(), escaped(name), known.size() > 1 ? " and others alike" : "",
        table(head, rows, ""));
  }
  return html;
}

std::string failures(const Study& study, const StudyResults& results) {
  if (results.unfinished.empty()) return "";
  std::string html = "<h2>Runs that failed</h2>\n<ul class=\"failed\">\n";
  for (const auto& [run, why] : results.unfinished)
    html += fmt::format("<li>{}: {}</li>\n", escaped(study.runs[run].name), escaped(why));
  return html + "</ul>\n";
}

std::string settings_table(const std::string& settings) {
  std::vector<Row> rows;
  std::istringstream lines(settings);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t is = line.find(" = ");
    rows.push_back({line.substr(0, is), line.substr(is + 3)});
  }
  return table({"key", "value"}, rows, " class=\"text\"");
}

std::string common_text(const Study& study, const StudyResults& results) {
  std::vector<std::string> fixed;
  for (std::size_t i = 0; i < study.axes.size(); ++i) {
    if (study.axes[i].values.size() == 1)
      fixed.push_back(fmt::format("{} {}", study.axes[i].shown, study.axes[i].values.front()));
  }
  return fmt::format("{} of {} runs, {}, by {}{}. Seeds: {}. Starling {}, torch {}.",
                     study.runs.size() - results.unfinished.size(), study.runs.size(),
                     study.simulated ? "simulated" : "of real workers", study.recipe,
                     fixed.empty() ? "" : fmt::format(", with {}", fmt::join(fixed, ", ")),
                     fmt::join(study.seeds, ", "), results.starling, results.torch);
}

}  // namespace

std::string study_page(const Study& study, const StudyResults& results) {
  const ScoreInfo& score = task_named(study.task).score;
  std::string html = page_head(study.title, "");
  html += fmt::format("<main>\n<p>{}</p>\n<h2>Results</h2>\n{}", escaped(common_text(study, results)),
                      results_table(study, results, score));
  html +=
      "<p class=\"note\">A value is the mean over the seeds ± their standard deviation. Intervals are those "
      "of Student's t. The difference is that from the arm with the baseline's values, in pairs of one seed. "
      "p is of the two-sided paired t test; Holm's correction counts all tests of this column. Coloured "
      "differences have a corrected p below 0.05. Fewer than two seeds have no deviation and no test.</p>\n";
  html += failures(study, results) + charts(study, results);
  html +=
      "<p class=\"note\">A line is the mean over the seeds, and the band around it goes from the least to "
      "the most of them. Bytes are what one worker has sent.</p>\n";
  html += class_tables(study);
  html += fmt::format("<details><summary>Settings of the first run</summary>\n{}</details>\n</main>\n",
                      settings_table(study.runs.front().settings));
  return html_page("Starling: " + study.title, std::string(kRunStyle) + kStudyStyle, html);
}

std::string study_table(const Study& study, const StudyResults& results) {
  const ScoreInfo& score = task_named(study.task).score;
  const std::size_t columns = varied_axes(study).size() + 7;
  std::vector<std::vector<std::string>> rows{head_of(study, results, score)};
  for (const auto& panel : panels_of(study)) {
    for (const std::size_t arm : panel) {
      auto& row = rows.emplace_back();
      for (const Cell& cell : row_of(study, results, arm, score)) row.push_back(cell.text);
    }
  }
  for (auto& row : rows) {  // names are the file's
    for (std::string& text : row) text = printable(text);
  }
  std::vector<std::size_t> widths(columns);
  const auto width_of = [](const std::string& text) {  // in characters of UTF-8
    return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
  };
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < columns; ++i) {
      const std::string gap(widths[i] - width_of(row[i]), ' ');
      const bool left = i < columns - 7;
      text += (i > 0 ? "  " : "") + (left ? row[i] + gap : gap + row[i]);
    }
    text += "\n";
  }
  return text;
}

}  // namespace starling::cli
