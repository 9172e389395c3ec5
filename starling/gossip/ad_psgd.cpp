#include "starling/gossip/ad_psgd.h"

#include <algorithm>
#include <deque>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {
namespace {

// 0 passive, 1 active. A worker without a path from a lower one begins with a passive side of its
// own.
std::vector<int> sides_of(const PairRates& rates) {
  const int n = rates.workers();
  std::vector<int> side(static_cast<std::size_t>(n), -1);
  for (int root = 0; root < n; ++root) {
    if (side[static_cast<std::size_t>(root)] >= 0) continue;
    side[static_cast<std::size_t>(root)] = 0;
    for (std::deque<int> found{root}; !found.empty(); found.pop_front()) {
      const int i = found.front();
      for (int j = 0; j < n; ++j) {
        if (i == j || rates.of_pair(i, j) == 0) continue;
        int& other = side[static_cast<std::size_t>(j)];
        if (other == side[static_cast<std::size_t>(i)])
          throw UsageError(
              fmt::format("ad-psgd-bipartite: the graph has no two sides: neighbours {} and {} would be on "
                          "the same; allowed are such as even rings, hypercubes and stars",
                          std::min(i, j), std::max(i, j)));
        if (other >= 0) continue;
        other = 1 - side[static_cast<std::size_t>(i)];
        found.push_back(j);
      }
    }
  }
  return side;
}

}  // namespace

PairRates bipartite(const PairRates& rates) {
  const std::vector<int> side = sides_of(rates);
  PairRates asked = rates;
  const auto active = static_cast<double>(std::ranges::count(side, 1));
  for (std::size_t i = 0; i < side.size(); ++i) {
    if (side[i] == 0) asked.asks[i].clear();
    for (Neighbour& j : asked.asks[i]) j.weight *= static_cast<double>(side.size()) / active;
  }
  return asked;
}

}  // namespace starling
