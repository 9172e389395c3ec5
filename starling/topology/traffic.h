// What a round costs, in bytes.
#pragma once

#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// The groups of three and more whose members all take the mean of the group (W_ij = 1/g) and have no other neighbours.
std::vector<std::vector<int>> averaging_groups(const Graph& graph);

// What a wire makes of it.
struct Sizes {
  double block = 1;    // of a model as it is sent to a neighbour
  double mean = 1;     // of the mean of a group
  bool groups = true;  // false: groups go in pairs
};

// How many times the model each worker sends. Once to everyone that receives from it; but a group of g as above does a
// reduce-scatter and an all-gather, (g - 1) / g each.
std::vector<double> sent(const Graph& graph, const Sizes& sizes = {});

// The same for nodes of so many workers each (consecutive ranks), which share one network interface: what leaves each
// node. With one worker a node it is sent().
std::vector<double> sent_by_nodes(const Graph& graph, int workers_per_node, const Sizes& sizes = {});

}  // namespace starling
