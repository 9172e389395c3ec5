// star: all workers talk to worker 0 only, which takes the mean of all. The gossip counterpart of a
// parameter server.
//
//   W_0j = W_j0 = 1/n,   W_00 = 1/n,   W_jj = 1 - 1/n  for j > 0
//
// The second singular value is 1 - 1/n: the centre has the mean after one round, and the others
// approach it slowly. Worker 0 sends and receives n - 1 times the model in every round.
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds star(int n) {
  Graph graph(n);
  for (int j = 1; j < n; ++j) add_edge(graph, 0, j, 1.0 / n);
  return {graph};
}

}  // namespace

Families families_star() {
  return {{
      .name = "star",
      .summary = "all workers mix with worker 0, 1/n each: n - 1 peers for worker 0, 1 for the others",
      .rounds = [](const ScheduleRequest& asked) { return star(asked.n); },
  }};
}

}  // namespace starling
