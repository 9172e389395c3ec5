// n-peer-exponential-P: the directed graphs of Stochastic Gradient Push. Assran et al., "Stochastic
// Gradient Push for Distributed Deep Learning", ICML 2019 (arXiv 1811.10792).
//
//   round k: i takes 1 / (P + 1) from each (i + j (P + 1)^k) mod n, j = 1..P,
//            while j (P + 1)^k <= n - 1
//
// Any n. If the last round has fewer peers, their weights are larger. Exact after r rounds for n =
// (P + 1)^r. P = 1 is one-peer-exponential-directed. W is doubly stochastic but not symmetric: an
// exchange that fails at one end moves the mean, except with scheme push-sum.
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

Rounds n_peer_exponential(int n, int peers) {
  Rounds rounds;
  for (long long power = 1; power < n; power *= peers + 1LL) {
    Graph& graph = rounds.emplace_back(n);
    std::vector<int> distances;
    for (long long j = 1; j <= peers && j * power < n; ++j) distances.push_back(static_cast<int>(j * power));
    const double weight = 1.0 / static_cast<double>(distances.size() + 1);
    for (int i = 0; i < n; ++i) {
      for (const int distance : distances) add_arc(graph, i, (i + distance) % n, weight);
    }
  }
  return rounds;
}

}  // namespace

Families families_n_peer_exponential() {
  return {{
      .name = "n-peer-exponential-P",
      .example = "n-peer-exponential-2",
      .summary = "worker i receives from i + j (P + 1)^k, j = 1..P: P peers, any n; not symmetric",
      .rounds = [](const ScheduleRequest& asked) { return n_peer_exponential(asked.n, asked.number); },
      .least = 1,
  }};
}

}  // namespace starling
