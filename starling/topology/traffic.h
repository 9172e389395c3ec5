// The cost of a round, in bytes.
#pragma once

#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// The groups of three and more members which all take the mean of the group (W_ij = 1/g) and have
// no other neighbours.
std::vector<std::vector<int>> averaging_groups(const Graph& graph);

// The sizes of messages on a wire.
struct Sizes {
  double block = 1;    // model size as sent to a neighbour
  double mean = 1;     // size of a group's mean
  bool groups = true;  // false: groups go in pairs
};

// The bytes that each worker sends, in units of the model. A worker sends the model once to every
// receiver. A group of g as above does a reduce-scatter and an all-gather, (g - 1) / g each.
std::vector<double> sent(const Graph& graph, const Sizes& sizes = {});

// The same for nodes of `workers_per_node` workers each (consecutive ranks), which share one
// network interface: the bytes that leave each node. With one worker per node it is sent().
std::vector<double> sent_by_nodes(const Graph& graph, int workers_per_node, const Sizes& sizes = {});

}  // namespace starling
