// starling study STUDY.toml: the runs of a grid of settings, and what they say together.
#include "starling/train/study.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include "cli/commands.h"
#include "cli/jobs.h"
#include "cli/run_charts.h"
#include "cli/study_page.h"
#include "cli/study_results.h"
#include "cli/usage.h"
#include "cli/workers.h"
#include "starling/core/descriptor.h"
#include "starling/core/error.h"
#include "starling/core/exists.h"
#include "starling/core/file.h"
#include "starling/core/text.h"

namespace starling::cli {

namespace {

namespace fs = std::filesystem;

struct StudyOptions {
  std::string file;
  std::string out;
  std::optional<int> jobs;
  bool list = false;
};

int cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// A simulated run needs one core, a real one as many as it has workers.
int jobs_of(const Study& study, const StudyOptions& options) {
  if (options.jobs) return *options.jobs;
  const int most = std::ranges::max_element(study.runs, {}, &Study::Run::workers)->workers;
  return std::max(1, cores() / (study.simulated ? 1 : most));
}

std::vector<std::string> arguments_of(const Study& study, const Study::Run& run, int jobs) {
  std::vector<std::string> arguments{study.simulated ? "simulate" : "train", study.recipe,
                                     fmt::format("--workers={}", run.workers)};
  const auto add = [&](const std::string& name, const std::string& value) {
    arguments.insert(arguments.end(), {"--" + name, value});  // two, since the value may be empty
  };
  add("run.threads", fmt::format("{}", std::max(1, cores() / (jobs * (study.simulated ? 1 : run.workers)))));
  for (const auto& [path, value] : run.keys) add(path, value);
  add("run.out", folder_of(study, run));
  for (const auto& [name, value] : study.cluster) add(name, value);
  return arguments;
}

// Nobody else works in the folder as long as this lives.
Descriptor locked(const Study& study) {
  std::error_code error;
  fs::create_directories(study.out + "/runs", error);
  if (error) throw Error(fmt::format("{}: cannot be made: {}", study.out, error.message()));
  const std::string path = study.out + "/lock";
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  if (file.get() < 0) throw Error(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    throw UsageError(fmt::format("{}: another `starling study` works in this folder", study.out));
  return file;
}

// A folder with the settings of the run alone. It is made elsewhere and moved, and so is the one
// before it: a study that is killed leaves no folder without settings.
void prepare(const Study& study, const Study::Run& run) {
  const std::string folder = folder_of(study, run), fresh = study.out + "/new", old = study.out + "/old";
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_empty(folder, error) &&
      !fs::exists(folder + "/settings.txt", error))
    throw UsageError(
        fmt::format("{}: is no folder of a study's run: remove it, or give another --out", folder));
  const auto check = [&] {
    if (error) throw Error(fmt::format("{}: cannot be made anew: {}", folder, error.message()));
  };
  for (const std::string& left : {fresh, old}) fs::remove_all(left, error), check();
  fs::create_directories(fresh, error), check();
  write_text(fresh + "/settings.txt", run.settings);
  if (fs::exists(folder, error)) fs::rename(folder, old, error), check();
  fs::rename(fresh, folder, error), check();
  fs::remove_all(old, error), check();
}

std::string state_of(const Study& study, const Study::Run& run) {
  if (is_finished(study, run)) return "finished";
  const std::string folder = folder_of(study, run);
  if (!exists(folder + "/settings.txt")) return "to do";
  return exists(folder + "/summary.json") && !has_settings(study, run) ? "settings changed" : "not finished";
}

// Why the command of the run refuses its settings; empty if it takes them.
std::string refusal_of(const Study& study, const Study::Run& run, int jobs) {
  CLI::App app("", "starling");
  Command command;
  (study.simulated ? add_simulate : add_train)(app, command);
  std::vector<std::string> arguments = arguments_of(study, run, jobs);
  arguments.emplace_back("--check");
  std::ranges::reverse(arguments);  // CLI11's order
  try {
    app.parse(std::move(arguments));
    command();
  } catch (const CLI::ParseError& error) {
    return usage_message(app, error);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void list(const Study& study, const StudyOptions& options) {
  const int jobs = jobs_of(study, options);
  std::optional<std::size_t> arm;
  std::string refusal;  // of the arm: a seed changes none
  for (const Study::Run& run : study.runs) {
    if (arm != run.arm) refusal = refusal_of(study, run, jobs);
    arm = run.arm;
    if (refusal.empty() || is_finished(study, run))
      fmt::print("{:<17}{}\n", state_of(study, run), printable(run.name));
    else
      fmt::print("{:<17}{}: {}\n", "refused", printable(run.name), printable(refusal));
  }
}

// Returns the signal that interrupted it, or 0.
int run_all(const Study& study, const StudyOptions& options) {
  const int at_once = jobs_of(study, options);
  std::vector<std::size_t> to_do;
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < study.runs.size(); ++i) {
    if (is_finished(study, study.runs[i])) continue;
    to_do.push_back(i);
    jobs.push_back(
        {arguments_of(study, study.runs[i], at_once), folder_of(study, study.runs[i]) + "/log.txt"});
  }
  const std::size_t before = study.runs.size() - to_do.size();
  fmt::print("{} runs, {} of them finished before\n", study.runs.size(), before);
  std::fflush(stdout);
  std::size_t done = before;
  const int signal = run_jobs(
      jobs, at_once, [&](std::size_t job) { prepare(study, study.runs[to_do[job]]); },
      [&](std::size_t job, int code) {
        const Study::Run& run = study.runs[to_do[job]];
        ++done;
        std::error_code none;
        if (code != 0) fs::remove(folder_of(study, run) + "/summary.json", none);  // not of all workers
        if (is_finished(study, run)) {
          fmt::print("{} of {}: {}\n", done, study.runs.size(), printable(run.name));
          std::fflush(stdout);
        } else {
          say_to_stderr(fmt::format("{} of {}: {} failed{}: {}", done, study.runs.size(), run.name,
                                    code == 0 ? "" : fmt::format(" with exit code {}", code),
                                    why_unfinished(study, run)));
        }
      });
  if (signal != 0)
    say_to_stderr(fmt::format(
        "signal {}: {} of {} runs are finished; the same command goes on", signal,
        std::ranges::count_if(study.runs, [&](const auto& run) { return is_finished(study, run); }),
        study.runs.size()));
  return signal;
}

int run_study(const StudyOptions& options) {
  Study study = read_study(options.file);
  if (!options.out.empty()) study.out = options.out;
  if (options.list) {
    list(study, options);
    return 0;
  }
  if (!study.simulated) refuse_two_launchers("study");
  const Descriptor lock = locked(study);
  if (const int signal = run_all(study, options)) return 128 + signal;
  const StudyResults results = results_of(study);
  write_text(study.out + "/study.json", study_json(study, results));
  write_text(study.out + "/study.csv", study_csv(study, results));
  write_text(study.out + "/study.html", study_page(study, results));
  fmt::print("\n{}\nwritten to {}/study.html, study.csv, study.json\n", study_table(study, results),
             printable(study.out));
  return results.unfinished.empty() ? 0 : 1;
}

}  // namespace

void add_study(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("study", "Run a grid of settings, and compare them with statistics");
  sub->footer("  starling study recipes/studies/ablation.toml");
  auto options = std::make_shared<StudyOptions>();
  sub->add_option("study", options->file, "a TOML file, such as recipes/studies/skew.toml")
      ->type_name("STUDY.toml")
      ->required();
  sub->add_option("--out", options->out, "folder of the runs and the results, in place of the study's out")
      ->type_name("DIR");
  sub->add_option("--jobs", options->jobs,
                  "runs at a time (default: the number of cores, divided by the workers if they are real)")
      ->type_name("N")
      ->check(CLI::Range(1, 1024));
  sub->add_flag("--list", options->list, "check all runs, print them with their state, and stop");
  sub->callback([options, &command] { command = [options] { return run_study(*options); }; });
}

}  // namespace starling::cli
