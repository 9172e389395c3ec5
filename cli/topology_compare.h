// All schedules beside each other, for one number of workers, and the schemes that send something
// else than a topology's blocks.
#pragma once

#include <string>
#include <vector>

#include "starling/optim/optimizer_options.h"
#include "starling/topology/traffic.h"

namespace starling::cli {

// One line of the comparison.
struct Compared {
  std::string name;               // of the schedule
  std::string scheme;             // empty: all that send their parameters, and mix by the rounds alone
  std::vector<std::string> same;  // names with the same rounds
  // Until the distance between workers is 1e-6 of its first value; infinity: never.
  double rounds = 0;
  bool estimated = false;  // these rounds
  bool has_rounds = true;  // false: a scheme whose workers do not agree by the rounds' weights alone
  // Mean number of models per round through the interface of the node that sends most.
  double per_round = 0;
  double in_all = 0;  // in all rounds
  int peers = 0;      // the most of one worker in a round
  bool symmetric = true;
};

struct Comparison {
  // Sorted by the traffic through an interface until consensus, the least first.
  std::vector<Compared> lines;
  std::vector<std::string> left_out;  // schemes that refuse this wire or one_in
  // Schemes that send a schedule's bytes, but agree in their own way: they have no line.
  std::vector<std::string> other_rounds;
};

// For the wire, one_in and workers_per_node of the options; `sizes` are those of the parameters
// with them. Includes `extra`, unless it is empty, on which schemes are then shown if they take it.
// Throws UsageError if `extra` is no schedule for n.
Comparison compare_schedules(int n, const Options& options, const Sizes& sizes, const std::string& extra);

}  // namespace starling::cli
