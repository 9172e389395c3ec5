#include "starling/topology/graph.h"

#include <algorithm>
#include <cmath>

namespace starling {

namespace {

double weight_of(const std::vector<Neighbour>& row, int rank) {
  const auto found =
      std::lower_bound(row.begin(), row.end(), rank, [](const Neighbour& n, int r) { return n.rank < r; });
  return found != row.end() && found->rank == rank ? found->weight : 0.0;
}

}  // namespace

double Graph::self_weight(int rank) const {
  double others = 0;
  for (const Neighbour& j : neighbours[rank]) others += j.weight;
  return 1.0 - others;
}

bool Graph::symmetric() const {
  for (int i = 0; i < workers(); ++i) {
    for (const Neighbour& j : neighbours[i]) {
      if (std::abs(j.weight - weight_of(neighbours[j.rank], i)) > 1e-12) return false;
    }
  }
  return true;
}

}  // namespace starling
