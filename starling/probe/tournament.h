// Everyone against everyone: so that all hosts can be measured in pairs, each pair once, and all hosts at once.
#pragma once

#include <utility>
#include <vector>

namespace starling {

// The rounds of a round-robin tournament of n (the circle method: one stays, the others turn): n - 1 of them, for an odd n above 1
// one more, in each of which another one has nobody.
std::vector<std::vector<std::pair<int, int>>> tournament(int n);

}  // namespace starling
