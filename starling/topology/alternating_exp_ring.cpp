// alternating-exp-ring (AER): one-peer exponential between nodes and averaging inside nodes, in
// turn, so that in every round only half of the nodes load the network. Wang et al., "From Promise
// to Practice", ICLR 2025 (arXiv 2410.11998). The paper has m = 2^r nodes; this file takes every m.
//
//   m nodes of L workers each. The nodes pair up as in base-2 of m (base.cpp): for m = 2^r, as
//   (a, a XOR 2^i) for i = 0 .. r-1. A counter runs over all pairs of all rounds of base-2. Each of
//   these rounds takes two rounds here, in which a pair does
//     counter even:  the mean inside each of the two nodes, then both nodes together;
//     counter odd:   the same two in the other order.
//   With weight 1/2, "together" is the mean over all 2 L workers. Other weights (base-2's 4/5 of
//   five nodes) are no mean; then workers of equal place in the two nodes mix with that weight,
//   which takes L exchanges in place of L^2. A node without a partner takes its mean inside.
//
// After the two rounds, all workers of a node hold the value that base-2 gives to the node. The
// schedule is therefore exact after twice base-2's rounds: 2 log2 m for m = 2^r. One node alone (m
// = 1) averages inside.
#include "starling/topology/families.h"
#include "starling/topology/sizes.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

std::vector<int> workers_of(int node, int L) {
  std::vector<int> workers;
  for (int local = 0; local < L; ++local) workers.push_back(node * L + local);
  return workers;
}

void add_together(Graph& graph, int a, int b, double weight, int L) {
  std::vector<int> both = workers_of(a, L);
  const std::vector<int> others = workers_of(b, L);
  if (weight == 0.5) {
    both.insert(both.end(), others.begin(), others.end());
    return add_group(graph, both);
  }
  for (int local = 0; local < L; ++local) add_edge(graph, both[local], others[local], weight);
}

Rounds alternating_exp_ring(int n, int L) {
  const int m = whole_nodes("alternating-exp-ring", n, L);
  if (m == 1) return complete(L);
  Rounds rounds;
  int counter = 0;
  for (const Graph& nodes : base(m, 1)) {
    Graph first(n), second(n);
    for (int a = 0; a < m; ++a) {
      if (nodes.neighbours[a].empty()) add_group(first, workers_of(a, L));
      for (const auto& [b, weight] : nodes.neighbours[a]) {
        if (b < a) continue;
        const bool inside_first = counter++ % 2 == 0;
        Graph& inside = inside_first ? first : second;
        Graph& across = inside_first ? second : first;
        add_group(inside, workers_of(a, L));
        add_group(inside, workers_of(b, L));
        add_together(across, a, b, weight, L);
      }
    }
    rounds.push_back(std::move(first));
    rounds.push_back(std::move(second));
  }
  return rounds;
}

}  // namespace

Families families_alternating_exp_ring() {
  return {{
      .name = "alternating-exp-ring",
      .summary = "inside nodes and between pairs of nodes in turn: exact after twice the rounds of "
                 "base-2 over the nodes; whole nodes",
      .rounds =
          [](const ScheduleRequest& asked) { return alternating_exp_ring(asked.n, asked.workers_per_node); },
  }};
}

}  // namespace starling
