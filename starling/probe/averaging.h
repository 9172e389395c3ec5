// The averaging of the paper's Table 1 (Wang et al., From Promise to Practice, ICLR 2025): how long workers take to average
// tensors with their neighbours, round after round, and with all by an all-reduce. Nothing else is computed.
//
// A round of a schedule is a step of CTA without a rule (optim/schemes/cta.cpp): for each tensor finish the exchange that
// the last round started, mix, start the next. A round of all-reduce reduces all tensors at once, and divides.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "starling/world/world.h"

namespace starling {

struct AveragingOptions {
  std::vector<std::string> ways{"complete", "ring",      "one-peer-exponential", "alternating-exp-ring",
                                "base-2",   "all-reduce"};
  int rounds = 8196;
  int tensors = 3;
  std::size_t bytes = 25 << 20;                    // of each, in fp32
  std::function<void(const std::string&)> says{};  // what is being measured now
};

struct AveragingTime {
  std::string way;
  double mean = 0;       // seconds of a round, over all rounds and workers
  double deviation = 0;  // of single rounds, on all workers
  double apart =
      0;  // the largest of the workers' averages less the smallest, after all rounds; n - 1 at first
  std::string
      refused{};  // not empty: nothing was measured, since the schedule does not exist for so many workers
};

// Collective, and the result is the same on all workers. A tenth as many rounds, at most ten, come before those that count. Throws
// Error where an exchange was aborted: what was measured is then something else.
std::vector<AveragingTime> measure_averaging(const World& world, const AveragingOptions& options = {});

}  // namespace starling
