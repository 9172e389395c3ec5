// ring: the static ring. Lian et al., "Can Decentralized Algorithms Outperform Centralized
// Algorithms?", NeurIPS 2017 (arXiv 1705.09056).
//
//   W_ij = 1/3  for j = i - 1, i, i + 1 (mod n)
//
// With two workers, left and right are the same worker: both take 1/2. Never exact for n > 3. The
// second singular value is (1 + 2 cos(2 pi / n)) / 3, so information needs about n^2 rounds to get
// around.
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds ring(int n) {
  if (n <= 3) return complete(n);
  Graph graph(n);
  for (int i = 0; i < n; ++i) add_edge(graph, i, (i + 1) % n, 1.0 / 3);
  return {graph};
}

}  // namespace

Families families_ring() {
  return {{
      .name = "ring",
      .summary = "static ring, left and right neighbour, 1/3 each: 2 peers, never exact for n > 3",
      .rounds = [](const ScheduleRequest& asked) { return ring(asked.n); },
  }};
}

}  // namespace starling
