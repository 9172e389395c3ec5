// `starling probe`: measures the network between the workers of a world, for the planner.
//
//   1. who is there: which workers share a host
//   2. inside hosts, in pairs of workers: latency; the rate of a message that the other one reads
//   3. between hosts, in the rounds of a tournament, all hosts at once: latency; one flow alone, there and back; then all
//      workers of both hosts at once and both ways, which fills their interfaces in both directions
//   4. exchanges with as many peers as the planner's schedules have, all flows at once (plan/schedules.h)
//   5. all-reduces of a few sizes up to a block of 25 MB, or the first that takes long, as they come in training: one after the
//      other, two under way at once
//
// A worker is in one pair at a time, and each stream has a share of the budget, half a second at most (exchanges twice that):
// 16 hosts take about a minute. Between hosts all is measured twice or, of few hosts, up to six times, and the best counts,
// since what else runs on these machines for a moment only makes it worse; what runs there all the time is measured along.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "starling/plan/profile.h"
#include "starling/world/world.h"

namespace starling {

struct ProbeOptions {
  double seconds = 45;     // for all streams together; the rest takes about as much again at most
  bool all_reduce = true;  // step 5
  std::function<void(const std::string&)> says{};  // what is being measured now
};

struct ProbeResult {
  Profile network;                              // without compute
  std::vector<std::vector<double>> bandwidths;  // [from][to] in bytes a second, by worker (probe/evaluate.h)
  std::vector<std::string> remarks;             // what is slow or asymmetric, a line each
};

// Collective, and the result is the same on all workers. Throws UsageError for a world of one, WorkerGone (probe/flows.h) on all
// others when a worker goes in the middle, Error when one does not answer for world.timeouts.stalled.
ProbeResult probe(const World& world, const ProbeOptions& options = {});

}  // namespace starling
