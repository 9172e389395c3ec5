#include "starling/topology/sizes.h"

#include <bit>

#include <fmt/format.h>

namespace starling {

bool power_of_two(int n) { return std::has_single_bit(static_cast<unsigned>(n)); }

std::string nearest_powers_of_two(int n, int unit) {
  if (n < unit) return fmt::format("the nearest is {}", unit);
  long long below = unit;
  while (2 * below <= n) below *= 2;
  return fmt::format("the nearest are {} and {}", below, 2 * below);
}

int most_square_rows(int n) {
  int rows = 1;
  for (int r = 2; r <= n / r; ++r) {
    if (n % r == 0) rows = r;
  }
  return rows;
}

}  // namespace starling
