// World sizes that a family of schedules exists for, and what to answer for the others.
#pragma once

#include <string>

namespace starling {

bool power_of_two(int n);

// The closest of unit, 2 unit, 4 unit, ... around an n that is none of them, as the end of a sentence: "the
// nearest is 4" or "the nearest are 4 and 8".
std::string nearest_powers_of_two(int n, int unit);

// n / workers_per_node. Throws UsageError where n workers do not fill their nodes, naming the nearest n that do.
int whole_nodes(const std::string& schedule, int n, int workers_per_node);

// The largest divisor of n that is not above its square root: n = r c is then as square as possible.
int most_square_rows(int n);

}  // namespace starling
