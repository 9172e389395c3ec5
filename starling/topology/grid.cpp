// grid: workers in rows and columns. Each mixes with the workers left, right, above and below.
// Metropolis-Hastings weights (weights.h), because the border has fewer neighbours than the middle.
//
//   n = r c, r <= c, as square as possible; worker i stands in row i / c, column i % c
//
// Any n; for a prime n the grid is a line. At most 4 peers, never exact for n > 2.
#include "starling/topology/families.h"
#include "starling/topology/sizes.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds grid(int n) {
  const int c = n / most_square_rows(n);
  Edges edges;
  for (int i = 0; i < n; ++i) {
    if (i % c + 1 < c) edges.emplace(i, i + 1);
    if (i + c < n) edges.emplace(i, i + c);
  }
  return {metropolis_hastings(n, edges)};
}

}  // namespace

Families families_grid() {
  return {{
      .name = "grid",
      .summary = "rows and columns, as square as possible: at most 4 peers, any n",
      .rounds = [](const ScheduleRequest& asked) { return grid(asked.n); },
  }};
}

}  // namespace starling
