// static-exponential: in each round, worker i receives from every worker (i + 2^l) mod n. Ying et
// al., "Exponential Graph is Provably Efficient for Decentralized Deep Training", NeurIPS 2021
// (arXiv 2110.13363).
//
//   W_ij = 1 / (ceil(log2 n) + 1)  for j = i and j = (i + 2^l) mod n, 2^l <= n - 1
//
// Any n. The second singular value is 1 - 2 / (log2 n + 1) for n = 2^r. W is doubly stochastic but,
// for n > 3, not symmetric: an exchange that fails at one end moves the mean.
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds static_exponential(int n) {
  int peers = 0;
  for (long long distance = 1; distance < n; distance *= 2) ++peers;
  Graph graph(n);
  for (int i = 0; i < n; ++i) {
    for (int l = 0; l < peers; ++l) add_arc(graph, i, (i + (1 << l)) % n, 1.0 / (peers + 1));
  }
  return {graph};
}

}  // namespace

Families families_static_exponential() {
  return {{
      .name = "static-exponential",
      .summary = "in each round, worker i receives from all i + 2^j: about log2 n peers, any n; not "
                 "symmetric",
      .rounds = [](const ScheduleRequest& asked) { return static_exponential(asked.n); },
  }};
}

}  // namespace starling
