// Runs as one self-contained HTML file: `starling report`.
#pragma once

#include <string>
#include <vector>

#include "starling/train/run_folder.h"

namespace starling::cli {

// The runs' names in legends: the last part of each folder, or the whole path where two are alike.
std::vector<std::string> names_of(const std::vector<RunFolder>& runs);

// A page that loads nothing: charts against steps, seconds and bytes, final figures, and the
// settings in which the runs differ.
std::string run_report(const std::vector<RunFolder>& runs);

}  // namespace starling::cli
