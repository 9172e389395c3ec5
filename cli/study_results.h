// The results of a study: each arm's figures over the seeds, compared with its baseline.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starling/core/statistics.h"
#include "starling/train/run_folder.h"
#include "starling/train/study.h"

namespace starling::cli {

// One figure of a finished run.
struct StudyMeasure {
  std::string name;   // in JSON and CSV: "accuracy", "bytes_sent_per_worker"
  std::string title;  // in the page
  std::optional<double> RunFigures::* figure;
};

// One figure of one arm.
struct StudyFigure {
  std::vector<std::optional<double>> values;  // by seed; absent: the run is not finished
  std::optional<Described> over_seeds;        // of those that are there
  // Against the baseline, over the seeds that both have; `corrected` is Holm's p, for all tests of
  // this measure in the study.
  std::optional<PairedTest> test;
  std::optional<double> corrected;
};

struct StudyArm {
  std::string name;
  std::vector<StudyFigure> figures;  // by measure
  int finished = 0;                  // runs
  // The mean of the finished runs' curves; the band goes from the least to the most of them. Empty
  // curves: there is none.
  RunFolder mean;
};

struct StudyResults {
  struct Unfinished {
    std::size_t run = 0;  // of Study::runs
    std::string why;      // the last line that it said
  };
  std::vector<StudyMeasure> measures;  // the first is the task's score
  std::vector<StudyArm> arms;
  std::vector<Unfinished> unfinished;
  std::string starling, torch;  // all versions of the finished runs: "0.1.0, 0.2.0"
};

// The folder of a run, in the folder of a study.
std::string folder_of(const Study& study, const Study::Run& run);
// Whether the folder is that of the run with these settings.
bool has_settings(const Study& study, const Study::Run& run);
// The same, and the run has come to its end with all of its workers.
bool is_finished(const Study& study, const Study::Run& run);

// For a run that was started and is not finished: it has lost workers, or else the last message of
// its log, or else the last line.
std::string why_unfinished(const Study& study, const Study::Run& run);

// Reads the folders of all finished runs.
StudyResults results_of(const Study& study);

std::string study_json(const Study& study, const StudyResults& results);
// A row for each arm and measure.
std::string study_csv(const Study& study, const StudyResults& results);

}  // namespace starling::cli
