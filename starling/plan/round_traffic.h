// The senders and receivers of each round of a schedule, and the connections between them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "starling/plan/links.h"
#include "starling/plan/network.h"
#include "starling/topology/graph.h"

namespace starling {

struct RoundTraffic {
  std::vector<int> first;        // worker i has targets[first[i]] .. targets[first[i + 1]]
  std::vector<int> targets;      // targets of blocks in pairs
  std::vector<int> connections;  // to these targets; -1: on the same host
  // The connections from them; -1: they do not send to it, or are on the same host.
  std::vector<int> back;
  std::vector<int> sources;   // by worker i: number of senders in pairs
  std::vector<int> group_of;  // by worker i; -1: none
  // By worker i: the connection to its group; -1: all are on one host.
  std::vector<int> to_group;
  std::vector<double> share;  // by worker i: the share of the interfaces that its exchange reaches
  std::vector<std::vector<int>> groups;
  std::size_t first_state = 0;  // first state of its groups, for the simulation

  int connection(int from, int to) const {
    const auto begin = targets.begin() + first[from], end = targets.begin() + first[from + 1];
    const auto found = std::find(begin, end, to);
    return found == end ? -1 : connections[found - targets.begin()];
  }
};

// Without connections. `groups`: groups take their mean, and do not exchange in pairs.
RoundTraffic traffic_of(const Graph& graph, const Network& network, bool groups);

// A connection goes from a worker to another one, or (-1 - group) to all others of its group. In a
// group its host receives as much at the same time.
struct Route {
  int from = 0, to = 0;
};
// Makes one connection for each pair of workers, and one for each member of each group. Returns
// the routes of all.
std::vector<Route> connect(std::vector<RoundTraffic>& rounds, const std::vector<int>& host_of, Links& links);

}  // namespace starling
