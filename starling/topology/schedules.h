// The schedules that ship, by name. Each family stands in a file of its own, with its paper at the top.
#pragma once

#include <string>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

struct ScheduleInfo {
  std::string name;     // as a recipe writes it; "base-K" stands for base-2, base-3, ...
  std::string summary;  // one line for --help
};
std::vector<ScheduleInfo> known_schedules();

// The schedule `name` for n workers of which each node holds workers_per_node (consecutive ranks; only schedules that
// know of nodes look at it). World size 1 is valid for every schedule: no neighbours.
// Throws UsageError when the name is unknown (listing the names) or when the family does not exist for n (naming the
// nearest n that works).
Schedule make_schedule(const std::string& name, int n, int workers_per_node = 1);

}  // namespace starling
