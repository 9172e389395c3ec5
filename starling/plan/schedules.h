// The schedules that the planner compares, and the network measurements that they need.
#pragma once

#include <string>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// The default schedules to compare. This order decides between equal step times. First comes
// base-2, with one peer and exact, then schedules that send little between hosts, last those with
// many peers.
const std::vector<std::string>& planned_schedules();

// Those of them that exist for `workers` workers; of several with the same rounds, the first.
// Schedules whose rounds depend on which workers share a node require hosts that are alike.
std::vector<std::string> planned_schedules(int workers, int workers_per_node, bool alike = true);

// Whether all hosts have the same number of workers.
bool hosts_are_alike(const std::vector<int>& host_of);

// Exchanges with `peers` others at once, for the worker with most peers.
struct Exchanges {
  int peers = 0;
  Graph graph;
};
// For all rounds of those schedules on these hosts' workers, by rising peers and each number once:
// the round with most flows between hosts. Rounds inside hosts are left out.
std::vector<Exchanges> planned_exchanges(const std::vector<int>& host_of, int workers_per_host);

}  // namespace starling
