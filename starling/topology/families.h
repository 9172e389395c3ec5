// A family of schedules is one file, NAME.cpp: paper, rounds, and `Families families_NAME()`, the
// entries of the table. CMakeLists.txt lists the files, and CMake generates the table of all.
// Callers use make_schedule() in schedules.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

using Rounds = std::vector<Graph>;

struct ScheduleRequest {
  int n = 0;  // workers, at least 2
  int workers_per_node = 1;
  int number = 0;        // the value of K, P, M or SEED
  std::string schedule;  // the value of SCHEDULE
};

struct Family {
  // As a recipe writes it; "base-K" means base-2, "hierarchical:SCHEDULE" hierarchical:ring.
  std::string_view name;
  std::string_view example{};  // one name of the family: "base-2"; empty: `name` is the only one
  std::string_view summary;    // one line for --help
  Rounds (*rounds)(const ScheduleRequest&);
  int least = 0;  // least allowed `number`
};
using Families = std::vector<Family>;
Families all_families();  // in the order of the list in CMakeLists.txt

// ---------------------------------------------------------------- constructions that files share

// All take n >= 1. They return no rounds if there is nothing to do (n = 1).
Rounds complete(int n);
Rounds hyper_hypercube_rounds(int n, int k);  // groups of at most k + 1
Rounds base(int n, int k);                    // Base-(k+1)
Rounds simple_base(int n, int k);             // Simple Base-(k+1)
// `between`: a schedule's name.
Rounds hierarchical(int n, int workers_per_node, const std::string& between);
Rounds custom(const std::string& path, int n);  // from a TOML or JSON file

// Rounds from measured bandwidth: row i, column j is from i to j, in any unit; 0 means no link. The
// links that work in both directions must connect all n workers.
Rounds bandwidth_matching(const std::vector<std::vector<double>>& bandwidth);

// Hyper-hypercube: the groups of each round, over the positions 0..n-1. Empty if n has a prime
// factor > k + 1.
using Groups = std::vector<std::vector<int>>;
std::optional<std::vector<Groups>> hyper_hypercube(int n, int k);

}  // namespace starling
