#include "starling/topology/spectrum.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>

namespace starling {

namespace {

constexpr double tolerance = 1e-12;

Matrix identity(int n) {
  Matrix I(n);
  for (int i = 0; i < n; ++i) I(i, i) = 1;
  return I;
}

Matrix times(const Graph& graph, const Matrix& product) {
  const int n = product.n;
  Matrix next(n);
  for (int i = 0; i < n; ++i) {
    const double self = graph.self_weight(i);
    for (int c = 0; c < n; ++c) next(i, c) = self * product(i, c);
    for (const Neighbour& j : graph.neighbours[i]) {
      for (int c = 0; c < n; ++c) next(i, c) += j.weight * product(j.rank, c);
    }
  }
  return next;
}

double distance_to_average(const Matrix& W) {
  double most = 0;
  for (double value : W.values) most = std::max(most, std::abs(value - 1.0 / W.n));
  return most;
}

double square_distance_to_average(const Matrix& W) {
  double squares = 0;
  for (double value : W.values) squares += (value - 1.0 / W.n) * (value - 1.0 / W.n);
  return squares;
}

// Whether the rows and columns form two parts, with zeros wherever one part meets the other. The
// singular value 1, that of the mean, then occurs more than once. All matchings of more than two
// workers are such.
bool falls_apart(const Matrix& W) {
  std::vector<bool> rows(W.n), columns(W.n);
  std::vector<int> found{0};  // rows, then columns from n on, that are connected to row 0
  rows[0] = true;
  for (std::size_t next = 0; next < found.size(); ++next) {
    const bool row = found[next] < W.n;
    const int at = row ? found[next] : found[next] - W.n;
    std::vector<bool>& others = row ? columns : rows;
    for (int k = 0; k < W.n; ++k) {
      if (others[k] || (row ? W(at, k) : W(k, at)) == 0) continue;
      others[k] = true;
      found.push_back(row ? k + W.n : k);
    }
  }
  return found.size() < 2 * rows.size();
}

Eigen::MatrixXd dense(const Matrix& W) {
  using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  return Eigen::Map<const Rows>(W.values.data(), W.n, W.n);
}

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
  Matrix product = identity(schedule.workers());
  for (const Graph& graph : schedule.rounds) product = times(graph, product);
  return product;
}

std::optional<int> rounds_to_average(const Schedule& schedule) {
  Matrix product = identity(schedule.workers());
  double before = 1;
  for (std::size_t r = 0; r <= schedule.rounds.size(); ++r) {
    const double now = distance_to_average(product);
    if (now <= tolerance) return before > 1e-6 ? std::optional(static_cast<int>(r)) : std::nullopt;
    before = now;
    if (r < schedule.rounds.size()) product = times(schedule.rounds[r], product);
  }
  return std::nullopt;
}

std::optional<Approach> rounds_to_consensus(const Schedule& schedule, double tolerance) {
  const double aim = tolerance * tolerance * (schedule.workers() - 1);
  Matrix product = identity(schedule.workers());
  double half = 0, now = square_distance_to_average(product);
  for (int r = 0; r < kCounted; ++r) {
    if (now <= aim) return Approach{static_cast<double>(r), false};
    if (r == kCounted / 2) half = now;
    product = times(schedule.at(r), product);
    now = square_distance_to_average(product);
  }
  const double rate = std::log(now / half) / (kCounted - kCounted / 2);
  if (!(rate < -1e-12)) return std::nullopt;
  return Approach{kCounted + std::ceil(std::max(0.0, std::log(aim / now) / rate)), true};
}

double smallest_eigenvalue(const Matrix& W) {
  return Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(dense(W), Eigen::EigenvaluesOnly).eigenvalues()(0);
}

double second_singular_value(const Matrix& W) {
  if (falls_apart(W)) return 1;
  const Eigen::MatrixXd A = dense(W).array() - 1.0 / W.n;
  // The largest eigenvalue of A^T A. Squaring costs digits of small singular values only.
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> squares(A.transpose() * A, Eigen::EigenvaluesOnly);
  return std::sqrt(std::max(0.0, squares.eigenvalues()(W.n - 1)));
}

}  // namespace starling
