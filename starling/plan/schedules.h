// The schedules that the planner compares, and what the network must be asked about them.
#pragma once

#include <string>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// What is compared if nothing else is asked for. Where steps take as long, this order decides: first base-2, with one peer and
// exact, then what sends little between hosts, last what has many peers.
const std::vector<std::string>& planned_schedules();

// Those of them that there are for so many workers; of several with the same rounds the first. Those whose rounds depend on which
// workers share a node are for hosts that are alike.
std::vector<std::string> planned_schedules(int workers, int workers_per_node, bool alike = true);

// Whether each host has as many workers.
bool hosts_are_alike(const std::vector<int>& host_of);

// Exchanges with `peers` others at once, by the worker that has most.
struct Exchanges {
  int peers = 0;
  Graph graph;
};
// Of all rounds of those schedules for these hosts' workers, by rising peers and each number once: the round in which most
// flows go between hosts. Rounds that stay inside hosts are left out.
std::vector<Exchanges> planned_exchanges(const std::vector<int>& host_of, int workers_per_host);

}  // namespace starling
