// What a round costs, in bytes.
#pragma once

#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// The groups of three and more whose members all take the mean of the group (W_ij = 1/g) and have no other neighbours.
std::vector<std::vector<int>> averaging_groups(const Graph& graph);

// How many times the model each worker sends. Once to everyone that receives from it; but a group of g as above does a
// reduce-scatter and an all-gather, 2 (g - 1) / g.
std::vector<double> sent(const Graph& graph);

}  // namespace starling
