// base-(k+1): exact averaging for every n in few rounds, at most k peers a round. Takezawa et al.,
// "Beyond Exponential Graph", NeurIPS 2023 (arXiv 2305.11420), algorithm 3. With k = 1 and n = 2^r,
// the hypercube.
//
//   n = p q, p the part of n whose prime factors are all <= k + 1.
//   p groups of q consecutive workers run Simple Base-(k+1) of q side by side. Then each set of p
//   workers with equal positions in their groups runs the hyper-hypercube HHC(p, k).
//   Simple Base-(k+1) of n replaces both if it is shorter.
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

Rounds base(int n, int k) {
  int q = n;
  for (int factor = 2; factor <= k + 1 && factor <= q; ++factor) {
    while (q % factor == 0) q /= factor;
  }
  const int p = n / q;

  Rounds rounds;
  for (const Graph& inside : simple_base(q, k)) {
    Graph& graph = rounds.emplace_back(n);
    for (int i = 0; i < n; ++i) {
      for (const Neighbour& j : inside.neighbours[i % q]) add_arc(graph, i, i / q * q + j.rank, j.weight);
    }
  }
  const std::vector<Groups> across = *hyper_hypercube(p, k);
  for (const Groups& groups : across) {
    Graph& graph = rounds.emplace_back(n);
    for (int position = 0; position < q; ++position) {
      for (std::vector<int> group : groups) {
        for (int& worker : group) worker = worker * q + position;
        add_group(graph, group);
      }
    }
  }
  Rounds simple = simple_base(n, k);
  return simple.size() < rounds.size() ? simple : rounds;
}

Families families_base() {
  return {{
      .name = "base-K",
      .example = "base-2",
      .summary = "base-2, base-3, ...: at most K - 1 peers, exact after about 2 log_K n rounds, any n",
      .rounds = [](const ScheduleRequest& asked) { return base(asked.n, asked.number - 1); },
      .least = 2,
  }};
}

}  // namespace starling
