// The building blocks of mixing matrices. Each one writes weights into the graph of one round.
#pragma once

#include <set>
#include <utility>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// i receives from j only: W_ij = weight.
void add_arc(Graph& graph, int i, int j, double weight);

// Both ways: W_ij = W_ji = weight.
void add_edge(Graph& graph, int i, int j, double weight);

// All workers of a group take the group's mean: W_ij = 1 / g for any two of its g members.
void add_group(Graph& graph, const std::vector<int>& group);

// Any directed graph, by its arcs (i, j): i takes from j. With d_j the number of workers that take
// from j, j itself included:
//   W_ij = 1 / d_j
// so that columns sum to 1, and rows to anything (Kempe, Dobra & Gehrke, "Gossip-based computation
// of aggregate information", 2003).
Graph push_sum_shares(int n, const std::set<std::pair<int, int>>& arcs);

// Any undirected graph, by its edges (i, j). With d_i the degree of i, itself included:
//   W_ij = W_ji = 1 / max(d_i, d_j)
// (Metropolis & Hastings; Xiao & Boyd, "Fast linear iterations for distributed averaging", 2004.)
using Edges = std::set<std::pair<int, int>>;
Graph metropolis_hastings(int n, const Edges& edges);

// The same edges, with the weights of the least second singular value (fastest_mixing.cpp) in place
// of theirs. An edge with weight 0 in this optimum is left out. Takes milliseconds for 16 workers,
// seconds for 128. Throws UsageError if the graph falls apart, and for more than 128 workers or
// 1000 edges. On another processor the last bits may differ, so all workers must be given the same
// weights.
Graph fastest_mixing(const Graph& graph);

}  // namespace starling
