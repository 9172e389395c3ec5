// one-peer-ring: around the ring, with the right and the left neighbour in turn. This is the "ring"
// of the package for "From Promise to Practice" (Wang et al., ICLR 2025, arXiv 2410.11998).
//
//   round 0: (0,1) (2,3) ... (n-2,n-1)      round 1: (1,2) (3,4) ... (n-1,0)      W_ij = W_ii = 1/2
//
// One peer a round; n must be even, so that no worker is left over.
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds one_peer_ring(int n) {
  if (n == 1) return {};
  if (n % 2 != 0) {
    throw UsageError(fmt::format(
        "schedule one-peer-ring needs an even number of workers, got {}: the nearest are {} and {} "
        "(base-2 works for every number)",
        n, n - 1, n + 1));
  }
  if (n == 2) return complete(2);  // both neighbours are the same worker
  Rounds rounds(2, Graph(n));
  for (int i = 0; i < n; i += 2) {
    add_edge(rounds[0], i, i + 1, 0.5);
    add_edge(rounds[1], i + 1, (i + 2) % n, 0.5);
  }
  return rounds;
}

}  // namespace

Families families_one_peer_ring() {
  return {{
      .name = "one-peer-ring",
      .summary = "right and left neighbour of the ring in turn, 1/2 each: 1 peer; even n",
      .rounds = [](const ScheduleRequest& asked) { return one_peer_ring(asked.n); },
  }};
}

}  // namespace starling
