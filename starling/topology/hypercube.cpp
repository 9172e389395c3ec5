// hypercube: the static hypercube. Few other sparse graphs are symmetric and contract fast.
// one-peer-exponential is the same graph with one dimension a round.
//
//   W_ij = 1 / (r + 1)  for j = i and j = i XOR 2^l, l = 0 .. r-1,   n = 2^r
//
// The second singular value is 1 - 2 / (r + 1).
#include "starling/topology/families.h"
#include "starling/topology/sizes.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds hypercube(int n) {
  need_power_of_two("hypercube", n);
  int r = 0;
  while (1 << r < n) ++r;
  Graph graph(n);
  for (int i = 0; i < n; ++i) {
    for (int l = 0; l < r; ++l) add_arc(graph, i, i ^ (1 << l), 1.0 / (r + 1));
  }
  return {graph};
}

}  // namespace

Families families_hypercube() {
  return {{
      .name = "hypercube",
      .summary = "in each round, worker i mixes with all i XOR 2^j: log2 n peers, symmetric; n = 2^r",
      .rounds = [](const ScheduleRequest& asked) { return hypercube(asked.n); },
  }};
}

}  // namespace starling
