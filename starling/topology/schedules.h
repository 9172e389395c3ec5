// The schedules that ship, by name. Each family stands in a file of its own, with its paper at the top.
#pragma once

#include <string>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

struct ScheduleInfo {
  std::string
      name;  // as a recipe writes it; "base-K" stands for base-2, "hierarchical:SCHEDULE" for hierarchical:ring
  std::string example;  // one name of the family: "base-2"
  std::string summary;  // one line for --help
};
std::vector<ScheduleInfo> known_schedules();

// The schedule `name` for n workers of which each node holds workers_per_node (consecutive ranks; only schedules that
// know of nodes look at it). World size 1 is valid for every schedule: no neighbours.
// A name that ends in ".toml" or ".json" is a file, which docs/topologies.md describes; it is made for one n only.
// Throws UsageError when the name is unknown (listing the names), when the family does not exist for n (naming the
// nearest n that works), or when the file holds no schedule of n workers (naming line, round and row) or
// one that is for push-sum.
Schedule make_schedule(const std::string& name, int n, int workers_per_node = 1);
// The same for scheme push-sum, whose graphs need not be balanced (Graph::balanced()): all others refuse those.
Schedule make_shares(const std::string& name, int n, int workers_per_node = 1);

// Throws UsageError, in the name of `who`, unless every edge is there in all rounds and both ways: only then can its ends
// remember from one round to the next what the other has.
void check_lasting_edges(const Schedule& schedule, const std::string& who);

}  // namespace starling
