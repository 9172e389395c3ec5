// The timelines of a run's workers (core/timeline.h) as one: the files timeline-R.json of its output folder, one below
// the other on one axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

struct MergedTimeline {
  int workers = 0;           // of the run
  std::vector<int> missing;  // those without a file
  std::int64_t spans = 0;
  std::int64_t dropped = 0;  // that did not fit into a worker's memory
};

// Writes `out`, which begins where the first worker's timeline does. Of a file only one line at a time is in memory.
// Throws Error, naming the file and the line, where one is missing, cut off, damaged or of another run; `out` is then
// left as it was.
MergedTimeline merge_timelines(const std::string& folder, const std::string& out);

}  // namespace starling
