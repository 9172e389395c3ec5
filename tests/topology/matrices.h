// Properties of mixing matrices, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "starling/topology/spectrum.h"

namespace starling {

inline constexpr double kRounding = 1e-12;

// No weight is negative; every row and every column sums to 1.
inline bool doubly_stochastic(const Matrix& W) {
  std::vector<double> sums(static_cast<std::size_t>(2 * W.n));  // of rows, then of columns
  for (int i = 0; i < W.n; ++i) {
    for (int j = 0; j < W.n; ++j) {
      if (W(i, j) < -kRounding) return false;
      sums[static_cast<std::size_t>(i)] += W(i, j);
      sums[static_cast<std::size_t>(W.n + j)] += W(i, j);
    }
  }
  return std::ranges::all_of(sums, [](double sum) { return std::abs(sum - 1) <= kRounding; });
}

// Every entry is 1/n: each worker then holds the exact mean.
inline bool averaging(const Matrix& W) {
  return std::ranges::all_of(W.values, [&](double w) { return std::abs(w - 1.0 / W.n) <= kRounding; });
}

}  // namespace starling
