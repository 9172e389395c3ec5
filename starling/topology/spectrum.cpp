#include "starling/topology/spectrum.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

namespace starling {

namespace {

constexpr double tolerance = 1e-12;

}  // namespace

Matrix mixing_matrix(const Graph& graph) {
  Matrix W(graph.workers());
  for (int i = 0; i < W.n; ++i) {
    W(i, i) = graph.self_weight(i);
    for (const Neighbour& j : graph.neighbours[i]) W(i, j.rank) = j.weight;
  }
  return W;
}

Matrix period_product(const Schedule& schedule) {
  const int n = schedule.workers();
  Matrix product(n);
  for (int i = 0; i < n; ++i) product(i, i) = 1;
  for (const Graph& graph : schedule.rounds) {
    Matrix next(n);
    for (int i = 0; i < n; ++i) {
      const double self = graph.self_weight(i);
      for (int c = 0; c < n; ++c) next(i, c) = self * product(i, c);
      for (const Neighbour& j : graph.neighbours[i]) {
        for (int c = 0; c < n; ++c) next(i, c) += j.weight * product(j.rank, c);
      }
    }
    product = std::move(next);
  }
  return product;
}

bool doubly_stochastic(const Matrix& W) {
  std::vector<double> rows(W.n), columns(W.n);
  for (int i = 0; i < W.n; ++i) {
    for (int j = 0; j < W.n; ++j) {
      if (W(i, j) < -tolerance) return false;
      rows[i] += W(i, j);
      columns[j] += W(i, j);
    }
  }
  for (int i = 0; i < W.n; ++i) {
    if (std::abs(rows[i] - 1) > tolerance || std::abs(columns[i] - 1) > tolerance) return false;
  }
  return true;
}

bool averaging(const Matrix& W) {
  for (double value : W.values) {
    if (std::abs(value - 1.0 / W.n) > tolerance) return false;
  }
  return true;
}

double second_singular_value(const Matrix& W) {
  using Dense = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::MatrixXd A = Eigen::Map<const Dense>(W.values.data(), W.n, W.n).array() - 1.0 / W.n;
  // The largest eigenvalue of A^T A: squaring costs digits of small singular values only.
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> squares(A.transpose() * A, Eigen::EigenvaluesOnly);
  return std::sqrt(std::max(0.0, squares.eigenvalues()(W.n - 1)));
}

}  // namespace starling
