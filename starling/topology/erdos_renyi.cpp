// erdos-renyi: one random graph for all rounds. Any two workers are neighbours with probability p.
// Erdos & Renyi, "On random graphs I", 1959. Metropolis-Hastings weights (weights.h).
//
//   p = 2 ln n / n, twice what a large graph needs to be connected; it is drawn again until it is
//
// Any n, about 2 ln n peers. There is no coordinator: every worker draws the same graph from the
// same seed.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "starling/core/random.h"
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

// Whether every worker can be reached from every other.
bool hangs_together(int n, const Edges& edges) {
  std::vector<int> root(n);
  std::iota(root.begin(), root.end(), 0);
  const auto root_of = [&](int i) {
    while (root[i] != i) i = root[i] = root[root[i]];
    return i;
  };
  int parts = n;
  for (const auto& [i, j] : edges) {
    const int a = root_of(i), b = root_of(j);
    if (a != b) root[a] = b, --parts;
  }
  return parts == 1;
}

Rounds erdos_renyi(int n, int seed) {
  if (n <= 2) return complete(n);
  const double p = std::min(1.0, 2 * std::log(n) / n);
  Edges edges;
  for (std::uint64_t attempt = 0; edges.empty() || !hangs_together(n, edges); ++attempt) {
    edges.clear();
    for (int i = 0; i < n; ++i) {
      for (int j = i + 1; j < n; ++j) {
        const std::uint64_t bits =
            random_bits({static_cast<std::uint64_t>(seed), attempt, static_cast<std::uint64_t>(i),
                         static_cast<std::uint64_t>(j)});
        if (uniform_of(bits) < p) edges.emplace(i, j);
      }
    }
  }
  return {metropolis_hastings(n, edges)};
}

}  // namespace

Families families_erdos_renyi() {
  return {
      {
          .name = "erdos-renyi",
          .summary = "a random graph, the same in every round and on all workers: about 2 ln n peers, any n",
          .rounds = [](const ScheduleRequest& asked) { return erdos_renyi(asked.n, 0); },
      },
      {
          .name = "erdos-renyi-SEED",
          .example = "erdos-renyi-7",
          .summary = "another such graph",
          .rounds = [](const ScheduleRequest& asked) { return erdos_renyi(asked.n, asked.number); },
      }};
}

}  // namespace starling
