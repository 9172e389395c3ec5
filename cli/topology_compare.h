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
  std::vector<std::string> same;  // names of the same rounds
  double rounds = 0;       // until the workers are within 1e-6 of what they were apart; infinity: never
  bool estimated = false;  // these rounds
  double per_round = 0;    // models through the interface of the node that sends most, a round in the mean
  double in_all = 0;       // in all rounds
  int peers = 0;           // the most of one worker in a round
  bool symmetric = true;
};

// The least traffic through an interface until consensus first, with scheme ceca-2p among them. `extra` is compared
// too, unless it is empty. Throws UsageError where that is no schedule for n.
std::vector<Compared> compare_schedules(int n, int workers_per_node, const Sizes& sizes,
                                        const std::string& extra);

}  // namespace starling::cli
