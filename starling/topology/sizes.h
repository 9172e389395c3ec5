// The world sizes for which a family of schedules exists, and the answer for all others.
#pragma once

#include <string>

namespace starling {

// Throws UsageError if n is no power of two, and names the nearest that are.
void need_power_of_two(const std::string& schedule, int n);

// n / workers_per_node. Throws UsageError if n workers do not fill their nodes, and names the
// nearest n that do.
int whole_nodes(const std::string& schedule, int n, int workers_per_node);

// The largest divisor r of n that is not above its square root: the grid n = r c is then as square
// as possible.
int most_square_rows(int n);

}  // namespace starling
