// complete: every worker averages with all others in every round.
//
//   W_ij = 1/n
//
// The gossip counterpart of All-Reduce: exact after one round, n - 1 peers.
#include <numeric>

#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

Rounds complete(int n) {
  if (n == 1) return {};
  std::vector<int> everyone(n);
  std::iota(everyone.begin(), everyone.end(), 0);
  Graph graph(n);
  add_group(graph, everyone);
  return {graph};
}

Families families_complete() {
  return {{
      .name = "complete",
      .summary = "each worker mixes with all others, 1/n each: exact in every round, n - 1 peers",
      .rounds = [](const ScheduleRequest& asked) { return complete(asked.n); },
  }};
}

}  // namespace starling
