// The weights with which a graph mixes fastest, by an interior-point method. Boyd, Diaconis & Xiao,
// "Fastest mixing Markov chain on a graph" (SIAM Review 46, 2004).
//
//   l        an edge {i, j};  a_l = e_i - e_j;  p_l its weight
//   W        I - Sum_l p_l a_l a_l^T
//   A        W - 11^T / n, whose largest |eigenvalue| is the second singular value of W
//   r_i      1 - Sum_{l at i} p_l, the weight that i keeps
//
//   minimise s  so that  -s I <= A <= s I,  p >= 0,  r >= 0
//
// Newton's method minimises, for t = 1, 20, 400, ..,
//
//   t s - log det(s I - A) - log det(s I + A) - Sum_l log p_l - Sum_i log r_i
//
// Its minimum has an s that is above the best one by at most (3 n + m) / t, with m the number of
// edges. With X = (s I - A)^-1, Y = (s I + A)^-1:
//
//   gradient   p_l:     -a_l^T X a_l + a_l^T Y a_l - 1 / p_l + Sum_{i in l} 1 / r_i
//              s:       t - tr X - tr Y
//   Hessian    p_l p_k: (a_l^T X a_k)^2 + (a_l^T Y a_k)^2 + [l = k] / p_l^2
//                       + Sum_{i in l and k} 1 / r_i^2
//              p_l s:   |X a_l|^2 - |Y a_l|^2
//              s s:     |X|_F^2 + |Y|_F^2
#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/topology/spectrum.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr int kMostWorkers = 128;
constexpr std::size_t kMostEdges = 1000;
constexpr double kPrecision = 1e-9;  // of s
constexpr double kUnused = 1e-6;     // edges of less weight are left out

class Barrier {
 public:
  Barrier(int n, const Edges& edges) : a_(MatrixXd::Zero(n, static_cast<Eigen::Index>(edges.size()))) {
    Eigen::Index l = 0;
    for (const auto& [i, j] : edges) {
      a_(i, l) = 1;
      a_(j, l++) = -1;
    }
    ends_ = a_.cwiseAbs();
  }
  double constraints() const { return static_cast<double>(3 * a_.rows() + a_.cols()); }

  // Infinite outside of the allowed region. `at`: p, then s.
  double value(const VectorXd& at, double t) const {
    const Point here(*this, at);
    if (!here.inside) return std::numeric_limits<double>::infinity();
    const auto log_det = [](const Eigen::LLT<MatrixXd>& of) {
      return 2 * MatrixXd(of.matrixL()).diagonal().array().log().sum();
    };
    return t * here.s - log_det(here.above) - log_det(here.below) - here.p.array().log().sum() -
           here.r.array().log().sum();
  }
  // Newton's direction, and the initial decrease of value() along it.
  std::pair<VectorXd, double> direction(const VectorXd& at, double t) const {
    const Point here(*this, at);
    const Eigen::Index n = a_.rows(), m = a_.cols();
    const MatrixXd I = MatrixXd::Identity(n, n), X = here.above.solve(I), Y = here.below.solve(I);
    const MatrixXd Xa = X * a_, Ya = Y * a_, aXa = a_.transpose() * Xa, aYa = a_.transpose() * Ya;
    const VectorXd kept = here.r.cwiseInverse(), used = here.p.cwiseInverse();
    VectorXd gradient(m + 1);
    gradient << -aXa.diagonal() + aYa.diagonal() - used + ends_.transpose() * kept, t - X.trace() - Y.trace();
    MatrixXd hessian(m + 1, m + 1);
    hessian.topLeftCorner(m, m) =
        aXa.cwiseAbs2() + aYa.cwiseAbs2() + ends_.transpose() * kept.cwiseAbs2().asDiagonal() * ends_;
    hessian.topLeftCorner(m, m).diagonal() += used.cwiseAbs2();
    hessian.topRightCorner(m, 1) = (Xa.colwise().squaredNorm() - Ya.colwise().squaredNorm()).transpose();
    hessian.bottomLeftCorner(1, m) = hessian.topRightCorner(m, 1).transpose();
    hessian(m, m) = X.squaredNorm() + Y.squaredNorm();
    VectorXd step = hessian.ldlt().solve(-gradient);
    return {step, -gradient.dot(step)};
  }

 private:
  struct Point {
    Point(const Barrier& b, const VectorXd& at)
        : p(at.head(b.a_.cols())), s(at(b.a_.cols())), r(VectorXd::Ones(b.a_.rows()) - b.ends_ * p) {
      if (p.minCoeff() <= 0 || r.minCoeff() <= 0 || s <= 0) return;
      const auto n = b.a_.rows();
      const MatrixXd A = MatrixXd::Identity(n, n) - b.a_ * p.asDiagonal() * b.a_.transpose() -
                         MatrixXd::Constant(n, n, 1.0 / static_cast<double>(n));
      above.compute(s * MatrixXd::Identity(n, n) - A);
      below.compute(s * MatrixXd::Identity(n, n) + A);
      inside = above.info() == Eigen::Success && below.info() == Eigen::Success;
    }
    VectorXd p;
    double s;
    VectorXd r;
    bool inside = false;
    Eigen::LLT<MatrixXd> above, below;
  };

  MatrixXd a_, ends_;  // a column for each edge; ends_: without signs
};

void newton(const Barrier& barrier, double t, VectorXd& at) {
  for (int k = 0; k < 100; ++k) {
    const auto [step, fall] = barrier.direction(at, t);
    if (!(fall > 1e-10)) return;
    const double now = barrier.value(at, t);
    double length = 1;
    while (!(barrier.value(at + length * step, t) <= now - 0.1 * length * fall)) {
      length /= 2;
      if (length < 1e-12) return;  // rounding hides the rest
    }
    at += length * step;
  }
}

}  // namespace

Graph fastest_mixing(const Graph& graph) {
  const int n = graph.workers();
  Edges edges;
  for (int i = 0; i < n; ++i) {
    for (const Neighbour& j : graph.neighbours[i]) edges.emplace(std::min(i, j.rank), std::max(i, j.rank));
  }
  if (n > kMostWorkers || edges.size() > kMostEdges) {
    throw UsageError(fmt::format("the fastest weights are limited to {} workers and {} edges, got {} and {}",
                                 kMostWorkers, kMostEdges, n, edges.size()));
  }
  if (n == 1) return graph;
  const Graph begin = metropolis_hastings(n, edges);
  if (second_singular_value(mixing_matrix(begin)) > 1 - 1e-12)
    throw UsageError("no weights bring all workers together: the graph falls apart");

  const Barrier barrier(n, edges);
  VectorXd at(static_cast<Eigen::Index>(edges.size()) + 1);
  Eigen::Index l = 0;
  for (const auto& [i, j] : edges) at(l++) = begin.weight(i, j);
  at(l) = 1;  // above all |eigenvalues| of A
  for (double t = 1; barrier.constraints() / t > kPrecision; t *= 20) newton(barrier, 20 * t, at);

  Graph best(n);
  l = 0;
  for (const auto& [i, j] : edges) {
    const double weight = at(l++);
    if (weight > kUnused) add_edge(best, i, j, weight);
  }
  return best;
}

}  // namespace starling
