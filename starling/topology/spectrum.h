// How fast a schedule reduces disagreement: its mixing matrices, dense, and their singular values.
//
// With x the values of all workers, one round is x <- W x. For doubly stochastic W the mean stays.
// The distance to the mean shrinks at least by the second singular value, which is the largest one
// of W - 11^T / n.
#pragma once

#include <optional>
#include <vector>

#include "starling/topology/graph.h"

namespace starling {

// Dense n x n, row by row.
struct Matrix {
  int n = 0;
  std::vector<double> values;

  explicit Matrix(int size) : n(size), values(static_cast<size_t>(size) * size) {}
  double& operator()(int i, int j) { return values[static_cast<size_t>(i) * n + j]; }
  double operator()(int i, int j) const { return values[static_cast<size_t>(i) * n + j]; }
};

Matrix mixing_matrix(const Graph& graph);         // W of one round
Matrix period_product(const Schedule& schedule);  // W_(T-1) .. W_1 W_0 of a period of T rounds

// The number of rounds after which all workers first hold the exact mean. Nothing if one period
// does not reach it. A distance that only shrinks, until rounding hides the rest, does not count.
std::optional<int> rounds_to_average(const Schedule& schedule);

// The number of rounds that bring the RMS distance to the mean below `tolerance` of its first
// value, for values that are independent at first. The ratio is |P - 11^T/n|_F / |I - 11^T/n|_F, P
// the product of the rounds. The first kCounted rounds are counted. More rounds are estimated from
// the decrease in the second half of these. Nothing if the distance does not shrink.
struct Approach {
  double rounds = 0;
  bool estimated = false;
};
constexpr int kCounted = 2000;
std::optional<Approach> rounds_to_consensus(const Schedule& schedule, double tolerance = 1e-6);

// For symmetric W.
double smallest_eigenvalue(const Matrix& W);

// For doubly stochastic W. O(n^3), unless W falls apart.
double second_singular_value(const Matrix& W);

}  // namespace starling
