#include "starling/probe/tournament.h"

#include <algorithm>
#include <set>

#include <gtest/gtest.h>

namespace starling {
namespace {

TEST(Tournament, EachPairMeetsOnceAndNobodyIsInTwo) {
  for (int n = 0; n <= 33; ++n) {
    const auto rounds = tournament(n);
    EXPECT_EQ(rounds.size(), static_cast<std::size_t>(n < 2 ? 0 : n - 1 + n % 2)) << n;
    std::set<std::pair<int, int>> met;
    for (const auto& pairs : rounds) {
      EXPECT_EQ(pairs.size(), static_cast<std::size_t>(n / 2)) << n;
      std::set<int> busy;
      for (const auto& [a, b] : pairs) {
        EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second) << n << ": " << a << ", " << b;
        EXPECT_TRUE(met.insert(std::minmax(a, b)).second) << n << ": " << a << ", " << b;
        EXPECT_TRUE(std::min(a, b) >= 0 && std::max(a, b) < n);
      }
    }
    EXPECT_EQ(met.size(), static_cast<std::size_t>(n * (n - 1) / 2)) << n;
  }
}

}  // namespace
}  // namespace starling
