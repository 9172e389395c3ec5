// toy-line: workers in a line; each mixes with the workers before and behind it. A real topology
// names its paper here. Metropolis-Hastings weights (weights.h). Any n; never exact for n > 2.
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds toy_line(int n) {
  Edges edges;
  for (int i = 0; i + 1 < n; ++i) edges.emplace(i, i + 1);
  return {metropolis_hastings(n, edges)};
}

}  // namespace

Families families_toy_line() {
  return {{
      .name = "toy-line",
      .summary = "a toy: workers in a line; at most 2 peers, any n",
      .rounds = [](const ScheduleRequest& asked) { return toy_line(asked.n); },
  }};
}

}  // namespace starling
