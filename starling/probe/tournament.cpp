#include "starling/probe/tournament.h"

namespace starling {

std::vector<std::vector<std::pair<int, int>>> tournament(int n) {
  if (n < 2) return {};
  const int seats = n + n % 2;  // the worker that meets the empty seat n has no partner
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int r = 0; r + 1 < seats; ++r) {
    const auto at = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + r) % (seats - 1); };
    auto& pairs = rounds.emplace_back();
    for (int seat = 0; seat < seats / 2; ++seat) {
      const int a = at(seat), b = at(seats - 1 - seat);
      if (a < n && b < n) pairs.emplace_back(a, b);
    }
  }
  return rounds;
}

}  // namespace starling
