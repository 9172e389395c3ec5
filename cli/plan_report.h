// A plan as one self-contained HTML file: `starling plan --html FILE`.
#pragma once

#include <string>
#include <vector>

#include "starling/plan/iteration.h"

namespace starling::cli {

struct ReportRow {
  std::string schedule, wire, bottleneck;
  double step = 0, low = 0, high = 0, efficiency = 0;
  std::string efficiency_text, speed_up_text;  // as bands
  bool recommended = false;
};

struct ReportWorld {
  int workers = 0, hosts = 0;
  bool extrapolated = false;
  std::vector<ReportRow> rows;      // all-reduce first, one host alone last
  std::vector<std::string> advice;  // sentences
  Iteration all_reduce, recommended;
};

// A page that loads nothing. `knee`: a sentence on the number of workers up to which more are worth
// it.
std::string html_report(const std::vector<ReportWorld>& worlds, const std::string& profile,
                        const std::string& knee);

}  // namespace starling::cli
