// The world sizes for which a family of schedules exists, and the answer for all others.
#pragma once

#include <string>

namespace starling {

bool power_of_two(int n);

// The closest of unit, 2 unit, 4 unit, ... around an n that is none of them. The text ends a
// sentence: "the nearest is 4" or "the nearest are 4 and 8".
std::string nearest_powers_of_two(int n, int unit);

// n / workers_per_node. Throws UsageError if n workers do not fill their nodes, and names the
// nearest n that do.
int whole_nodes(const std::string& schedule, int n, int workers_per_node);

// The largest divisor r of n that is not above its square root: the grid n = r c is then as square
// as possible.
int most_square_rows(int n);

}  // namespace starling
