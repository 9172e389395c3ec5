#include "cli/run_report.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "cli/page.h"
#include "cli/run_charts.h"

namespace starling::cli {

namespace {

std::string setting_of(const RunFolder& run, const std::string& path) {
  const auto found = std::ranges::find(run.settings, path, &std::pair<std::string, std::string>::first);
  return found == run.settings.end() ? "-" : found->second;
}

// A name among the settings, without TOML's quotes.
std::string name_in(const RunFolder& run, const std::string& path) {
  const std::string value = setting_of(run, path);
  return value.size() > 1 && value.front() == '"' ? value.substr(1, value.size() - 2) : value;
}

std::vector<Row> figures_of(const std::vector<RunFolder>& runs) {
  std::vector<Row> rows;
  const auto row = [&](const std::string& name, const std::function<std::string(const RunFolder&)>& text) {
    Row cells{name};
    for (const RunFolder& run : runs) cells.push_back(text(run));
    rows.push_back(std::move(cells));
  };
  const auto number = [&](const std::string& name, std::optional<double> RunFigures::* figure,
                          const std::function<std::string(double, const RunFolder&)>& text) {
    row(name, [&](const RunFolder& run) {
      const std::optional<double> value = run.end.*figure;
      return value ? text(*value, run) : std::string("-");
    });
  };
  const auto plain = [](double value, const RunFolder&) { return fmt::format("{:.4g}", value); };
  row("run", [](const RunFolder& run) {
    return !run.end.finished ? "not finished" : run.simulated ? "simulated" : "finished";
  });
  row("workers", [](const RunFolder& run) {
    return run.end.workers_lost == 0
               ? fmt::format("{}", run.end.workers)
               : fmt::format("{}, {} of them lost", run.end.workers, run.end.workers_lost);
  });
  row("scheme", [](const RunFolder& run) { return name_in(run, "mixing.scheme"); });
  row("topology", [](const RunFolder& run) {
    return run.topology.empty() ? name_in(run, "mixing.topology") : run.topology;
  });
  number("steps", &RunFigures::steps,
         [](double value, const RunFolder&) { return fmt::format("{:.0f}", value); });
  number("time of training", &RunFigures::seconds, [](double value, const RunFolder& run) {
    return fmt::format("{:.1f} s{}", value, run.simulated ? ", virtual" : "");
  });
  number("training loss", &RunFigures::loss, plain);
  number("test loss, average model", &RunFigures::test_loss, plain);
  std::set<std::string> tasks;
  for (const RunFolder& first : runs) {
    if (!tasks.insert(first.task).second) continue;
    const ScoreInfo& score = task_named(first.task).score;
    const auto text = [&](double value, const RunFolder& run) {
      return run.task == first.task ? score.text(value) : std::string("-");
    };
    number(fmt::format("test {}, average model", score.name), &RunFigures::score, text);
    number(fmt::format("test {}, worst worker", score.name), &RunFigures::worst_score, text);
  }
  number("consensus distance", &RunFigures::consensus_distance, plain);
  number("sent per worker", &RunFigures::bytes, [](double value, const RunFolder& run) {
    return size_text(value) + (run.end.bytes_computed ? " (computed)" : "");
  });
  number("waiting for neighbours", &RunFigures::waiting_share,
         [](double value, const RunFolder&) { return fmt::format("{:.1f} %", 100 * value); });
  return rows;
}

// Every key of any run, in the order of the first run that has it.
std::vector<Row> settings_of(const std::vector<RunFolder>& runs) {
  std::vector<Row> rows;
  std::set<std::string> seen;
  for (const RunFolder& first : runs) {
    for (const auto& [path, value] : first.settings) {
      if (!seen.insert(path).second) continue;
      Row row{path};
      for (const RunFolder& run : runs) row.push_back(setting_of(run, path));
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<Row> differing(const std::vector<Row>& rows) {
  std::vector<Row> differ;
  std::ranges::copy_if(rows, std::back_inserter(differ), [](const Row& row) {
    return std::any_of(row.begin() + 2, row.end(), [&](const std::string& value) { return value != row[1]; });
  });
  return differ;
}

}  // namespace

std::vector<std::string> names_of(const std::vector<RunFolder>& runs) {
  std::vector<std::string> names;
  for (const RunFolder& run : runs) {
    std::filesystem::path path = std::filesystem::path(run.folder).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // "out/run/"
    names.push_back(path.filename().string());
  }
  std::set<std::string> different(names.begin(), names.end());
  if (different.size() < names.size() || different.contains(".") || different.contains("")) {
    std::ranges::transform(runs, names.begin(), &RunFolder::folder);
  }
  return names;
}

std::string run_report(const std::vector<RunFolder>& runs) {
  const std::vector<std::string> names = names_of(runs);
  std::string html =
      page_head(runs.size() == 1 ? "A run of Starling" : "Runs of Starling, side by side", legend_of(names));
  html += "<main>\n" + charts_of(runs, names);
  html +=
      "<p class=\"note\">A line is the mean of the workers, and the band around it goes from the least to "
      "the most of them. Seconds are those of training, without set-up and tests. Bytes are what one worker "
      "has sent.</p>\n";

  Row head{""};
  head.insert(head.end(), names.begin(), names.end());
  html += "<h2>Final figures</h2>\n" + table(head, figures_of(runs), "");
  const std::vector<Row> settings = settings_of(runs);
  head.front() = "key";
  if (runs.size() > 1) {
    const std::vector<Row> differ = differing(settings);
    html += "<h2>Settings that differ</h2>\n";
    html += differ.empty() ? "<p>None.</p>\n" : table(head, differ, " class=\"text\"");
  }
  html += fmt::format("<details><summary>All {} settings</summary>\n{}</details>\n</main>\n", settings.size(),
                      table(head, settings, " class=\"text\""));
  return html_page("Starling: " + (names.size() == 1 ? names.front() : fmt::format("{} runs", names.size())),
                   kRunStyle, html);
}

}  // namespace starling::cli
