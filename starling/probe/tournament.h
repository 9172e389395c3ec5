// A round-robin tournament. All hosts can be measured in pairs, each pair once, and all hosts at
// once.
#pragma once

#include <utility>
#include <vector>

namespace starling {

// The rounds of a round-robin tournament of n (the circle method: one stays, the others rotate).
// There are n - 1 rounds. An odd n above 1 has one more, and in each round another one has no
// partner.
std::vector<std::vector<std::pair<int, int>>> tournament(int n);

}  // namespace starling
