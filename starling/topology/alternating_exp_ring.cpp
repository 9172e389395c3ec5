// alternating-exp-ring (AER): one-peer exponential between nodes, averaging inside nodes, in turn, so that in
// every round only half of the nodes load the network. Wang et al., "From Promise to Practice", ICLR 2025
// (arXiv 2410.11998).
//
//   m = 2^r nodes of L workers each. For i = 0 .. r-1 the nodes pair up as (a, a XOR 2^i), in order of a; a
//   counter runs over all pairs of all i. Each i takes two rounds, in which a pair does
//     counter even:  the mean inside each of the two nodes, then the mean over all 2 L workers of both;
//     counter odd:   the same two in the other order.
//
// Exact after 2 log2 m rounds. One node alone (m = 1) averages inside.
#include <fmt/format.h>

#include "starling/core/error.h"
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

}  // namespace

Rounds alternating_exp_ring(int n, int L) {
  const int m = n / L;
  if (n % L != 0 || !power_of_two(m)) {
    throw UsageError(
        fmt::format("schedule alternating-exp-ring needs a power of two nodes of {} {} each, got {} workers: "
                    "{} (base-2 works for "
                    "every number)",
                    L, L == 1 ? "worker" : "workers", n, nearest_powers_of_two(n, L)));
  }
  if (m == 1) return complete(L);
  Rounds rounds;
  int counter = 0;
  for (int distance = 1; distance < m; distance *= 2) {
    Graph first(n), second(n);
    for (int a = 0; a < m; ++a) {
      const int b = a ^ distance;
      if (b < a) continue;
      const bool inside_first = counter++ % 2 == 0;
      Graph& inside = inside_first ? first : second;
      Graph& across = inside_first ? second : first;
      std::vector<int> both = workers_of(a, L);
      const std::vector<int> others = workers_of(b, L);
      add_group(inside, both);
      add_group(inside, others);
      both.insert(both.end(), others.begin(), others.end());
      add_group(across, both);
    }
    rounds.push_back(std::move(first));
    rounds.push_back(std::move(second));
  }
  return rounds;
}

}  // namespace starling
