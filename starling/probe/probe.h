// `starling probe`: measures the network between the workers of a world, for the planner.
//
//   1. which workers share a host
//   2. inside hosts, in pairs of workers: latency, and the rate of a message that the other one
//      reads
//   3. between hosts, in the rounds of a tournament, all hosts at once: latency; one flow alone, in
//      each direction; then all workers of both hosts at once in both directions, which fills their
//      interfaces
//   4. exchanges with as many peers as the planner's schedules have, all flows at once
//      (plan/schedules.h)
//   5. all-reduces of a few sizes up to a block of 25 MB, or up to the first one that takes long,
//      in the order of training: one after the other, two in flight
//
// A worker is in one pair at a time. Each stream has a share of the budget, half a second at most
// (exchanges twice that): 16 hosts take about a minute. Everything between hosts is measured twice,
// or up to six times if there are few hosts, and the best result counts. Other programs on these
// machines can only make a measurement worse. Permanent load is measured as part of the network.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "starling/plan/profile.h"
#include "starling/world/world.h"

namespace starling {

struct ProbeOptions {
  double seconds = 45;     // for all streams together; the rest takes at most about as much again
  bool all_reduce = true;  // step 5
  std::function<void(const std::string&)> says{};  // called with the name of each measurement
};

struct ProbeResult {
  Profile network;  // without compute
  // [from][to] in bytes a second, by worker (probe/evaluate.h).
  std::vector<std::vector<double>> bandwidths;
  std::vector<std::string> remarks;  // slow or asymmetric parts, a line each
};

// Collective; the result is the same on all workers. Throws UsageError for a world of one,
// WorkerGone (probe/flows.h) on all others if a worker is lost during it, Error if one does not
// answer for world.timeouts.stalled.
ProbeResult probe(const World& world, const ProbeOptions& options = {});

}  // namespace starling
