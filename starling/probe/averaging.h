// The averaging of the paper's Table 1 (Wang et al., From Promise to Practice, ICLR 2025): the time
// to average tensors with the neighbours, round after round, and with all workers by an all-reduce.
// Nothing else is computed.
//
// A round of a schedule is a step of CTA without a rule (optim/schemes/cta.cpp): for each tensor
// finish the exchange that the last round started, mix, start the next. A round of all-reduce
// reduces all tensors at once, and divides.
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
  std::function<void(const std::string&)> says{};  // called with the name of each measurement
};

struct AveragingTime {
  std::string way;
  double mean = 0;       // seconds of a round, over all rounds and workers
  double deviation = 0;  // over single rounds on all workers
  // The largest of the workers' averages minus the smallest, after all rounds; n - 1 at first.
  double spread = 0;
  std::string
      // Not empty: not measured, because the schedule does not exist for this number of workers.
      refused{};
};

// Collective; the result is the same on all workers. A tenth as many warm-up rounds, at most ten,
// precede the counted ones. Throws Error if an exchange was aborted, because the measurement would
// be invalid.
std::vector<AveragingTime> measure_averaging(const World& world, const AveragingOptions& options = {});

}  // namespace starling
