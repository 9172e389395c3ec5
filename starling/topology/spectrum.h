// What a schedule does to disagreement: its mixing matrices, dense, and their singular values.
//
// With x the values of all workers, one round is x <- W x. For doubly stochastic W the mean stays, and the
// distance to it shrinks at least by the second singular value: the largest one of W - 11^T / n.
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

// No negative weight, every row and every column sums to 1 (to 1e-12).
bool doubly_stochastic(const Matrix& W);
// Every entry is 1/n (to 1e-12): the product makes everyone hold the exact mean.
bool averaging(const Matrix& W);
// After how many rounds everyone holds the exact mean, the first time; nothing where one period does not do it. What
// only shrinks, until rounding hides the rest, does not count.
std::optional<int> rounds_to_average(const Schedule& schedule);

// How many rounds bring the RMS distance to the mean below `tolerance` of what it was, for values that are independent at
// first: |P - 11^T/n|_F / |I - 11^T/n|_F, P the product of the rounds. The first kCounted are counted, more are estimated
// from how the distance shrinks in the second half of these. Nothing where it does not shrink.
struct Approach {
  double rounds = 0;
  bool estimated = false;
};
constexpr int kCounted = 2000;
std::optional<Approach> rounds_to_consensus(const Schedule& schedule, double tolerance = 1e-6);

// For doubly stochastic W. O(n^3), where W does not fall apart.
double second_singular_value(const Matrix& W);

}  // namespace starling
