// The families of schedules, one file each, and the constructions that they share. Everything here takes n >= 1, and
// gives no rounds where nothing has to be done (n = 1); make_schedule in schedules.h is the way in.
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
Rounds hierarchical(int n, int workers_per_node, const std::string& between);  // a schedule's name
Rounds inner_outer(int n, int workers_per_node, const std::string& schedule);  // likewise
Rounds star(int n);
Rounds grid(int n);
Rounds torus(int n);
Rounds d_equistatic(int n, int M);  // shifts
Rounds u_equistatic(int n, int M);
Rounds od_equidyn(int n, int seed);
Rounds ou_equidyn(int n, int seed);
Rounds erdos_renyi(int n, int seed);
Rounds random_matching(int n, int seed);
Rounds custom(const std::string& path, int n);  // from a TOML or JSON file

// By measured bandwidth: row i, column j from i to j, in any unit; 0 where there is no link. Every two of the n
// workers must be reachable over links that go both ways.
Rounds bandwidth_matching(const std::vector<std::vector<double>>& bandwidth);

// Hyper-hypercube: the groups of each round, over the positions 0..n-1. Nothing when n has a prime factor > k + 1.
using Groups = std::vector<std::vector<int>>;
std::optional<std::vector<Groups>> hyper_hypercube(int n, int k);

}  // namespace starling
