// The families of schedules, one file each, and the constructions that they share. All functions
// take n >= 1. They return no rounds if there is nothing to do (n = 1). Callers use make_schedule()
// in schedules.h.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

using Rounds = std::vector<Graph>;

Rounds complete(int n);
Rounds ring(int n);
Rounds one_peer_ring(int n);
Rounds one_peer_exponential(int n);
Rounds one_peer_exponential_directed(int n);
Rounds n_peer_exponential(int n, int peers);
Rounds static_exponential(int n);
Rounds hypercube(int n);
Rounds hyper_hypercube_rounds(int n, int k);  // groups of at most k + 1
Rounds base(int n, int k);                    // Base-(k+1)
Rounds simple_base(int n, int k);             // Simple Base-(k+1)
Rounds alternating_exp_ring(int n, int workers_per_node);
// `between`: a schedule's name.
Rounds hierarchical(int n, int workers_per_node, const std::string& between);
// `schedule`: a schedule's name.
Rounds inner_outer(int n, int workers_per_node, const std::string& schedule);
Rounds star(int n);
Rounds grid(int n);
Rounds torus(int n);
Rounds d_equistatic(int n, int M);  // M shifts
Rounds u_equistatic(int n, int M);
Rounds od_equidyn(int n, int seed);
Rounds ou_equidyn(int n, int seed);
Rounds erdos_renyi(int n, int seed);
Rounds random_matching(int n, int seed);
Rounds custom(const std::string& path, int n);  // from a TOML or JSON file

// Rounds from measured bandwidth: row i, column j is from i to j, in any unit; 0 means no link. The
// links that work in both directions must connect all n workers.
Rounds bandwidth_matching(const std::vector<std::vector<double>>& bandwidth);

// Hyper-hypercube: the groups of each round, over the positions 0..n-1. Empty if n has a prime
// factor > k + 1.
using Groups = std::vector<std::vector<int>>;
std::optional<std::vector<Groups>> hyper_hypercube(int n, int k);

}  // namespace starling
