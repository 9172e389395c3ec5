// The building blocks of mixing matrices: each writes weights into the graph of one round.
#pragma once

#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// i receives from j only: W_ij = weight.
void add_arc(Graph& graph, int i, int j, double weight);

// Both ways: W_ij = W_ji = weight.
void add_edge(Graph& graph, int i, int j, double weight);

// The workers of a group all take the group's mean: W_ij = 1 / g for every two of its g members.
void add_group(Graph& graph, const std::vector<int>& group);

}  // namespace starling
