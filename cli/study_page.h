// A study as one self-contained HTML file: `starling study`.
#pragma once

#include <string>

#include "cli/study_results.h"

namespace starling::cli {

// A page that loads nothing: one table of all arms, charts against steps, seconds and bytes, each
// worker's classes, and the runs that failed.
std::string study_page(const Study& study, const StudyResults& results);
// The table of the score, in text.
std::string study_table(const Study& study, const StudyResults& results);

}  // namespace starling::cli
