// The status of a run as text, as JSON, and as text for Prometheus: the same figures.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "starling/train/run_status.h"

namespace starling::cli {

// A column of the table of workers.
struct WorkerColumn {
  const char* header;
  int place;  // of importance, from 0: a narrow terminal shows the first ones
  std::string (*cell)(const WorkerStatus& worker, double now);  // "-" if it is not known
};
std::span<const WorkerColumn> worker_columns();
// The headers, then the cells of each worker.
std::vector<std::vector<std::string>> worker_rows(const std::vector<WorkerStatus>& workers, double now);

// The lines above that table: state, progress and the latest test.
std::string status_head(const RunStatus& run);
// Head, late workers and table.
std::string status_text(const RunStatus& run);
nlohmann::ordered_json status_json(const RunStatus& run);
// In the text-based exposition format, version 0.0.4.
std::string status_prometheus(const RunStatus& run);

}  // namespace starling::cli
