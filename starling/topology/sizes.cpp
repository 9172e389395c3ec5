#include "starling/topology/sizes.h"

#include <bit>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {

bool power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

std::string nearest_powers_of_two(int n, int unit) {
  if (n < unit) return fmt::format("the nearest is {}", unit);
  long long below = unit;
  while (2 * below <= n) below *= 2;
  return fmt::format("the nearest are {} and {}", below, 2 * below);
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
