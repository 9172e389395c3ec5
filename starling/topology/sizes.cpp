#include "starling/topology/sizes.h"

#include <bit>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

void need_power_of_two(const std::string& schedule, int n) {
  const unsigned below = std::bit_floor(static_cast<unsigned>(n));
  if (below == static_cast<unsigned>(n)) return;
  throw UsageError(
      fmt::format("schedule {} needs a power of two workers, got {}: the nearest are {} and {} (base-2 works "
                  "for every number)",
                  schedule, n, below, 2 * below));
}

int whole_nodes(const std::string& schedule, int n, int workers_per_node) {
  const int m = n / workers_per_node;
  if (m * workers_per_node == n) return m;
  const long long below = static_cast<long long>(m) * workers_per_node;
  const std::string nearest = m == 0
                                  ? fmt::format("the nearest is {}", workers_per_node)
                                  : fmt::format("the nearest are {} and {}", below, below + workers_per_node);
  throw UsageError(
      fmt::format("schedule {} needs whole nodes of {} workers each, got {} workers: {} (base-2 works for "
                  "every number)",
                  schedule, workers_per_node, n, nearest));
}

int most_square_rows(int n) {
  int rows = 1;
  for (int r = 2; r <= n / r; ++r) {
    if (n % r == 0) rows = r;
  }
  return rows;
}

}  // namespace starling
