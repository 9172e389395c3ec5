// torus: a grid whose rows and columns are closed to rings. Metropolis-Hastings weights
// (weights.h): 1/5 each with three rows or more.
//
//   n = r c, r <= c, as square as possible; worker i stands in row i / c, column i % c
//
// In a ring of two workers, left and right (above and below) are the same neighbour, counted once.
// Any n; for a prime n the torus is a ring.
#include <algorithm>

#include "starling/topology/families.h"
#include "starling/topology/sizes.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds torus(int n) {
  const int c = n / most_square_rows(n);
  Edges edges;
  const auto connect = [&](int i, int j) {
    if (i != j) edges.insert(std::minmax(i, j));
  };
  for (int i = 0; i < n; ++i) {
    connect(i, i / c * c + (i + 1) % c);
    connect(i, (i + c) % n);
  }
  return {metropolis_hastings(n, edges)};
}

}  // namespace

Families families_torus() {
  return {{
      .name = "torus",
      .summary = "the grid with its ends joined: at most 4 peers, any n",
      .rounds = [](const ScheduleRequest& asked) { return torus(asked.n); },
  }};
}

}  // namespace starling
