// Hyper-hypercube HHC(V, k): the k-peer form of the hypercube, a building block of base-(k+1).
// Takezawa et al., "Beyond Exponential Graph: Communication-Efficient Topologies for Decentralized
// Learning via Finite-time Convergence", NeurIPS 2023 (arXiv 2305.11420), algorithm 1.
//
//   n = n_1 n_2 ... n_l, every n_i <= k + 1, l as small as possible.
//   Write positions in mixed radix (n_1, .., n_l). Round i: positions that differ in digit i only
//   take their mean.
//
// Exact after l rounds: after round i each worker holds the mean over digits 1..i.
//
// hyper-hypercube-K is the schedule with K = k + 1. It exists if n has no prime factor above K.
// base-K is the same for these n, and exists for the others too.
#include <algorithm>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/topology/families.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

// The fewest factors of n that are at most `largest`, rising. Nothing if a prime factor of n is
// larger.
std::optional<std::vector<int>> fewest_factors(int n, int largest) {
  if (n == 1) return std::vector<int>{};
  std::optional<std::vector<int>> best;
  for (int factor = std::min(n, largest); factor >= 2; --factor) {
    if (n % factor != 0) continue;
    auto factors = fewest_factors(n / factor, factor);
    if (factors && (!best || factors->size() + 1 < best->size())) {
      best = std::move(factors);
      best->push_back(factor);
    }
  }
  return best;
}

}  // namespace

std::optional<std::vector<Groups>> hyper_hypercube(int n, int k) {
  const auto factors = fewest_factors(n, k + 1);
  if (!factors) return std::nullopt;
  std::vector<Groups> rounds;
  int stride = 1;  // the value of one step of this round's digit
  for (int factor : *factors) {
    Groups& groups = rounds.emplace_back();
    for (int first = 0; first < n; ++first) {
      if (first / stride % factor != 0) continue;
      std::vector<int>& group = groups.emplace_back();
      for (int digit = 0; digit < factor; ++digit) group.push_back(first + digit * stride);
    }
    stride *= factor;
  }
  return rounds;
}

Rounds hyper_hypercube_rounds(int n, int k) {
  const auto cube = hyper_hypercube(n, k);
  if (!cube) {
    int below = n - 1, above = n + 1;
    while (!fewest_factors(below, k + 1)) --below;
    while (!fewest_factors(above, k + 1)) ++above;
    throw UsageError(
        fmt::format("schedule hyper-hypercube-{} needs a number of workers without a prime factor above {}, "
                    "got {}: the nearest are {} and {} (base-{} works for every number)",
                    k + 1, k + 1, n, below, above, k + 1));
  }
  Rounds rounds;
  for (const Groups& groups : *cube) {
    Graph& graph = rounds.emplace_back(n);
    for (const auto& group : groups) add_group(graph, group);
  }
  return rounds;
}

Families families_hyper_hypercube() {
  return {{
      .name = "hyper-hypercube-K",
      .example = "hyper-hypercube-2",
      .summary = "hyper-hypercube-2, ...-3, ...: groups of at most K, exact after about log_K n rounds; "
                 "n without prime factors above K",
      .rounds =
          [](const ScheduleRequest& asked) { return hyper_hypercube_rounds(asked.n, asked.number - 1); },
      .least = 2,
  }};
}

}  // namespace starling
