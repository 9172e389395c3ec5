// The status of a run as text, as JSON, and as text for Prometheus: the same figures.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "starling/train/run_status.h"

namespace starling::cli {

std::string status_text(const RunStatus& run);
nlohmann::ordered_json status_json(const RunStatus& run);
// In the text-based exposition format, version 0.0.4.
std::string status_prometheus(const RunStatus& run);

}  // namespace starling::cli
