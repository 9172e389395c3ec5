#include "cli/study_results.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/json.h"
#include "starling/core/error.h"
#include "starling/core/exists.h"
#include "starling/core/tree.h"
#include "starling/train/task.h"

namespace starling::cli {

namespace {

using StudyJson = nlohmann::ordered_json;

constexpr std::size_t kMostSettings = 1 << 20;  // bytes
constexpr std::size_t kMostSummaryFile = 16 << 20;

std::vector<StudyMeasure> measures_of(const ScoreInfo& score) {
  const std::string name(score.name);
  return {{name, fmt::format("test {}", name), &RunFigures::score},
          {"worst_" + name, fmt::format("test {}, worst worker", name), &RunFigures::worst_score},
          {"test_loss", "test loss", &RunFigures::test_loss},
          {"loss", "training loss", &RunFigures::loss},
          {"consensus_distance", "consensus distance", &RunFigures::consensus_distance},
          {"bytes_sent_per_worker", "sent per worker", &RunFigures::bytes},
          {"seconds", "time of training", &RunFigures::seconds}};
}

// ---------------------------------------------------------------- curves

struct NamedCurve {
  const char* name;
  RunCurve RunFolder::* curve;
};
constexpr std::array<NamedCurve, 9> kCurves{{{"loss", &RunFolder::loss},
                                             {"score", &RunFolder::score},
                                             {"test_loss", &RunFolder::test_loss},
                                             {"consensus_distance", &RunFolder::consensus_distance},
                                             {"lr", &RunFolder::lr},
                                             {"bytes_per_step", &RunFolder::step_bytes},
                                             {"waiting_share", &RunFolder::waiting_share},
                                             {"spread", &RunFolder::spread},
                                             {"distance", &RunFolder::distance}}};

// Point by point, as far as the shortest goes.
RunCurve mean_of(const std::vector<RunFolder>& runs, RunCurve RunFolder::* curve) {
  std::size_t points = (runs.front().*curve).size();
  for (const RunFolder& run : runs) points = std::min(points, (run.*curve).size());
  RunCurve mean(points);
  const auto n = static_cast<double>(runs.size());
  for (std::size_t i = 0; i < points; ++i) {
    RunPoint& point = mean[i];
    point.least = point.most = (runs.front().*curve)[i].value;
    for (const RunFolder& run : runs) {
      const RunPoint& each = (run.*curve)[i];
      point.step += each.step / n, point.seconds += each.seconds / n, point.bytes += each.bytes / n;
      point.value += each.value / n;
      point.least = std::min(point.least, each.value), point.most = std::max(point.most, each.value);
    }
    if (runs.size() == 1) point.value = point.least;
  }
  return mean;
}

// ---------------------------------------------------------------- files of a run

struct StudyVersions {
  std::set<std::string> starling, torch;
};

// Discarded if it is no JSON.
StudyJson read_summary(const std::string& path) {
  return StudyJson::parse(read_at_most(path, kMostSummaryFile, "summary of a run"), nullptr, false);
}

void read_versions(const std::string& path, StudyVersions& versions) {
  const StudyJson summary = read_summary(path);
  if (!summary.is_object() || !summary.contains("versions") || !summary["versions"].is_object()) return;
  const auto add = [&](const char* name, std::set<std::string>& to) {
    const StudyJson version = summary["versions"].value(name, StudyJson());
    if (version.is_string()) to.insert(version.get<std::string>());
  };
  add("starling", versions.starling), add("torch", versions.torch);
}

// ---------------------------------------------------------------- comparison

void compare_arm(const Study& study, std::size_t number, std::size_t measure, StudyResults& results) {
  const auto& baseline = study.arms[number].baseline;
  if (!baseline) return;
  StudyFigure& figure = results.arms[number].figures[measure];
  const StudyFigure& other = results.arms[*baseline].figures[measure];
  std::vector<double> mine, theirs;
  for (std::size_t seed = 0; seed < figure.values.size(); ++seed) {
    if (!figure.values[seed] || !other.values[seed]) continue;
    mine.push_back(*figure.values[seed]);
    theirs.push_back(*other.values[seed]);
  }
  if (!mine.empty()) figure.test = paired_t_test(mine, theirs);
}

void correct(std::size_t measure, StudyResults& results) {
  std::vector<double> p;
  std::vector<StudyFigure*> tested;
  for (StudyArm& arm : results.arms) {
    StudyFigure& figure = arm.figures[measure];
    if (!figure.test || !figure.test->p) continue;
    p.push_back(*figure.test->p);
    tested.push_back(&figure);
  }
  const std::vector<double> corrected = holm(p);
  for (std::size_t i = 0; i < tested.size(); ++i) tested[i]->corrected = corrected[i];
}

// ---------------------------------------------------------------- JSON and CSV

StudyJson described(const Described& told) {
  return {{"runs", told.count},
          {"mean", told.mean},
          {"deviation", or_null(told.deviation)},
          {"low", or_null(told.low())},
          {"high", or_null(told.high())}};
}

StudyJson figure_json(const StudyFigure& figure) {
  StudyJson json{{"values", StudyJson::array()}};
  for (const auto& value : figure.values) json["values"].push_back(or_null(value));
  if (figure.over_seeds) json.update(described(*figure.over_seeds));
  if (figure.test) {
    json["difference"] = described(figure.test->difference);
    json["p"] = or_null(figure.test->p);
    json["p_holm"] = or_null(figure.corrected);
  }
  return json;
}

std::string quoted(const std::string& text) {  // RFC 4180
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string safe = "\"";
  for (const char c : text) safe += c == '"' ? std::string("\"\"") : std::string(1, c);
  return safe + "\"";
}

std::string cell(std::optional<double> value) { return value ? fmt::format("{}", *value) : ""; }

std::string described_cells(const Described* told, bool with_deviation) {
  if (told == nullptr) return with_deviation ? ",,," : ",,";
  return fmt::format("{}{}{},{},{}", told->mean, with_deviation ? "," : "",
                     with_deviation ? cell(told->deviation) : "", cell(told->low()), cell(told->high()));
}

// The last message of a run's log, else its last line, else "it said nothing".
std::string last_line(const std::string& path) {
  std::ifstream file(path);
  std::string last, message;
  for (std::string line; std::getline(file, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
    // Output that was buffered may stand behind it. "worker 2 failed" comes after its reason.
    if (line.starts_with("starling: ") && !line.starts_with("starling: worker "))
      message = line.substr(std::string_view("starling: ").size());
  }
  return !message.empty() ? message : !last.empty() ? last : "it said nothing";
}

std::string summary_of(const Study& study, const Study::Run& run) {
  return folder_of(study, run) + "/summary.json";
}

}  // namespace

std::string folder_of(const Study& study, const Study::Run& run) { return study.out + "/runs/" + run.name; }

bool has_settings(const Study& study, const Study::Run& run) {
  const std::string path = folder_of(study, run) + "/settings.txt";
  return exists(path) && read_at_most(path, kMostSettings, "settings of a run") == run.settings;
}

bool is_finished(const Study& study, const Study::Run& run) {
  if (!has_settings(study, run) || !exists(summary_of(study, run))) return false;
  const StudyJson summary = read_summary(summary_of(study, run));
  return summary.is_object() && summary.value("workers_lost", StudyJson()) == 0;
}

std::string why_unfinished(const Study& study, const Study::Run& run) {
  return exists(summary_of(study, run)) ? "it has lost workers"
                                        : last_line(folder_of(study, run) + "/log.txt");
}

StudyResults results_of(const Study& study) {
  std::map<std::string, std::string> scores;
  for (const TaskInfo* task : known_tasks()) scores.emplace(task->name, task->score.name);
  const TaskInfo& task = **std::ranges::find(known_tasks(), study.task, &TaskInfo::name);
  StudyResults results{
      .measures = measures_of(task.score), .arms = {}, .unfinished = {}, .starling = {}, .torch = {}};
  StudyVersions versions;
  for (std::size_t number = 0; number < study.arms.size(); ++number) {
    StudyArm& arm = results.arms.emplace_back();
    arm.name = study.name_of(study.arms[number]);
    arm.figures.resize(results.measures.size());
    std::vector<RunFolder> runs;
    for (std::size_t i = 0; i < study.runs.size(); ++i) {
      const Study::Run& run = study.runs[i];
      if (run.arm != number) continue;
      const std::string folder = folder_of(study, run);
      RunFigures end;
      if (!is_finished(study, run)) {
        results.unfinished.push_back({i, why_unfinished(study, run)});
      } else {
        try {
          end = runs.emplace_back(read_run_folder(folder, scores)).end;
          read_versions(summary_of(study, run), versions);
        } catch (const Error& damage) {
          results.unfinished.push_back({i, damage.what()});
        }
      }
      for (std::size_t m = 0; m < results.measures.size(); ++m)
        arm.figures[m].values.push_back(end.*results.measures[m].figure);
    }
    arm.finished = static_cast<int>(runs.size());
    if (!runs.empty()) arm.mean = runs.front();
    arm.mean.folder = arm.name;
    for (const NamedCurve& each : kCurves) {
      if (!runs.empty()) arm.mean.*each.curve = mean_of(runs, each.curve);
    }
    for (StudyFigure& figure : arm.figures) {
      std::vector<double> values;
      for (const auto& value : figure.values) {
        if (value) values.push_back(*value);
      }
      if (!values.empty()) figure.over_seeds = describe(values);
    }
  }
  results.starling = fmt::format("{}", fmt::join(versions.starling, ", "));
  results.torch = fmt::format("{}", fmt::join(versions.torch, ", "));
  for (std::size_t measure = 0; measure < results.measures.size(); ++measure) {
    for (std::size_t number = 0; number < results.arms.size(); ++number)
      compare_arm(study, number, measure, results);
    correct(measure, results);
  }
  return results;
}

std::string study_json(const Study& study, const StudyResults& results) {
  StudyJson json{{"title", study.title},
                 {"task", study.task},
                 {"recipe", study.recipe},
                 {"run", study.simulated ? "simulate" : "train"},
                 {"versions", {{"starling", results.starling}, {"torch", results.torch}}},
                 {"seeds", study.seeds},
                 {"axes", StudyJson::array()},
                 {"arms", StudyJson::array()}};
  for (const Study::Axis& axis : study.axes)
    json["axes"].push_back({{"name", axis.name}, {"values", axis.values}});
  for (std::size_t number = 0; number < study.arms.size(); ++number) {
    const StudyArm& arm = results.arms[number];
    StudyJson one{{"name", arm.name}, {"values", study.arms[number].values}};
    const auto& baseline = study.arms[number].baseline;
    one["baseline"] = baseline ? StudyJson(results.arms[*baseline].name) : StudyJson(nullptr);
    for (const Study::Run& run : study.runs) {
      if (run.arm == number) one["runs"].push_back("runs/" + run.name);
    }
    for (std::size_t m = 0; m < results.measures.size(); ++m)
      one["figures"][results.measures[m].name] = figure_json(arm.figures[m]);
    for (const NamedCurve& each : kCurves) {
      StudyJson points = StudyJson::array();
      for (const RunPoint& p : arm.mean.*each.curve)
        points.push_back({p.step, p.seconds, p.bytes, p.value, p.least, p.most});
      one["curves"][each.name] = std::move(points);
    }
    json["arms"].push_back(std::move(one));
  }
  json["curve_columns"] = {"step", "seconds", "bytes", "mean", "least", "most"};
  json["unfinished"] = StudyJson::array();
  for (const auto& [run, why] : results.unfinished)
    json["unfinished"].push_back({{"run", "runs/" + study.runs[run].name}, {"why", why}});
  return json.dump(1, ' ', false, StudyJson::error_handler_t::replace) + "\n";
}

std::string study_csv(const Study& study, const StudyResults& results) {
  std::string text;
  for (const Study::Axis& axis : study.axes) text += quoted(axis.name) + ",";
  text += "measure,runs,mean,deviation,low,high,difference,difference_low,difference_high,p,p_holm";
  for (const std::int64_t seed : study.seeds) text += fmt::format(",seed_{}", seed);
  text += "\n";
  for (std::size_t number = 0; number < study.arms.size(); ++number) {
    for (std::size_t m = 0; m < results.measures.size(); ++m) {
      const StudyFigure& figure = results.arms[number].figures[m];
      for (const std::string& value : study.arms[number].values) text += quoted(value) + ",";
      text += fmt::format("{},{},{},{},{},{}", results.measures[m].name,
                          figure.over_seeds ? figure.over_seeds->count : 0,
                          described_cells(figure.over_seeds ? &*figure.over_seeds : nullptr, true),
                          described_cells(figure.test ? &figure.test->difference : nullptr, false),
                          cell(figure.test ? figure.test->p : std::nullopt), cell(figure.corrected));
      for (const auto& value : figure.values) text += "," + cell(value);
      text += "\n";
    }
  }
  return text;
}

}  // namespace starling::cli
