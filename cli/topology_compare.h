// All schedules beside each other, for one number of workers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starling/topology/traffic.h"

namespace starling::cli {

// One line of the comparison.
struct Compared {
  std::string name;
  std::vector<std::string> same;  // names with the same rounds
  // Until the distance between workers is 1e-6 of its first value; infinity: never.
  double rounds = 0;
  bool estimated = false;  // these rounds
  // Mean number of models per round through the interface of the node that sends most.
  double per_round = 0;
  double in_all = 0;  // in all rounds
  int peers = 0;      // the most of one worker in a round
  bool symmetric = true;
};

// Sorted by the traffic through an interface until consensus, the least first. Includes scheme
// ceca-2p and, unless it is empty, `extra`. Throws UsageError if `extra` is no schedule for n.
std::vector<Compared> compare_schedules(int n, int workers_per_node, const Sizes& sizes,
                                        const std::string& extra);

}  // namespace starling::cli
