// Merges the timelines of a run's workers (core/timeline.h), the files timeline-R.json of its
// output folder, on one time axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

struct MergedTimeline {
  int workers = 0;           // of the run
  std::vector<int> missing;  // those without a file
  std::int64_t spans = 0;
  std::int64_t dropped = 0;  // spans that a full timeline did not take
};

// Writes `out`, which begins with the earliest worker's timeline. Reads the files line by line, so
// memory is bounded. Throws UsageError, with file and line, if a file is missing, truncated,
// damaged or from another run, and Error if `out` cannot be written. `out` is then not changed.
MergedTimeline merge_timelines(const std::string& folder, const std::string& out);

}  // namespace starling
