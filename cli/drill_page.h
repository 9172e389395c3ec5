// A drill's outcome: who was there when, and the figures, as text and as an HTML page.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/run_charts.h"
#include "starling/train/drill.h"

namespace starling::cli {

// The parts of the run's summary.json that a drill shows.
struct DrilledRun {
  std::optional<double> loss, score, blocks_aborted, workers_lost;
  std::string score_name;
  std::string score_text;  // the score as its task writes it
};

// A row per worker, time to the right, at most `columns` wide.
std::string drill_text(const DrillReport& report, int columns);
// The figures, as rows of a name and a value.
std::vector<Row> drill_figures(const DrillReport& report, const DrilledRun& run);
// Resident memory of each worker.
std::vector<Row> drill_memory(const DrillReport& report);
std::string drill_page(const std::string& title, const DrillReport& report, const DrilledRun& run);

}  // namespace starling::cli
