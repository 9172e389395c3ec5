// The runtime model of all-reduce (simulate.h).
#pragma once

#include <vector>

#include "starling/plan/simulate.h"

namespace starling {

// All-reduce in a ring of all workers, by rank: 2 (n - 1) steps of a latency and an n-th of the
// bytes at the slowest rate. If `measured` is not empty, its times replace the formula: linear
// between its sizes and beyond the last two, constant below the first.
double all_reduce_seconds(const Network& network, double bytes,
                          const std::vector<AllReduceTime>& measured = {});
// Throws as simulate(). An event is one block of one worker in one iteration.
Forecast simulate_all_reduce(const Network& network, const Work& work, const Horizon& run = {},
                             const std::vector<AllReduceTime>& measured = {});

}  // namespace starling
