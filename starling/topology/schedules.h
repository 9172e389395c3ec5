// The schedules that ship, by name. Each family has its own file, with its paper at the top.
#pragma once

#include <string>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

struct ScheduleInfo {
  std::string name;     // as a recipe writes it; "base-K" means base-2, base-3, ...
  std::string example;  // one name of the family: "base-2"
  std::string summary;  // one line for --help
};
std::vector<ScheduleInfo> known_schedules();

// The schedule `name` for n workers, with workers_per_node of them (consecutive ranks) on each
// node. Only schedules that use nodes read workers_per_node. World size 1 is valid for every
// schedule: no neighbours. A name that ends in ".toml" or ".json" is a file for one n;
// docs/topologies.md describes it. Throws UsageError if the name is unknown (and lists the names),
// or if the family does not exist for n (and names the nearest n that works). It also throws if the
// file holds no schedule of n workers (and names line, round and row), or one for push-sum.
Schedule make_schedule(const std::string& name, int n, int workers_per_node = 1);
// The same for scheme push-sum. Its graphs need not be balanced (Graph::balanced()); all other
// schemes refuse such graphs.
Schedule make_shares(const std::string& name, int n, int workers_per_node = 1);

// Throws UsageError, in the name of `who`, unless every edge exists in all rounds and in both
// directions. Only then can both ends remember the other's value from one round to the next.
void check_lasting_edges(const Schedule& schedule, const std::string& who);
// Throws UsageError, in the name of `who`, unless all rounds are symmetric.
void check_symmetric_rounds(const Schedule& schedule, const std::string& who);

}  // namespace starling
