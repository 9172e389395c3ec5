#include "starling/gossip/a2cid2.h"

#include <Eigen/Core>
#include <Eigen/Eigenvalues>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {
namespace {

// A worker that is not reached from worker 0, or -1.
int unreached_worker(const PairRates& rates) {
  std::vector<bool> reached(rates.asks.size());
  std::vector<int> found{0};
  reached.front() = true;
  for (std::size_t next = 0; next < found.size(); ++next) {
    for (int j = 0; j < rates.workers(); ++j) {
      if (reached[static_cast<std::size_t>(j)] || rates.of_pair(found[next], j) == 0) continue;
      reached[static_cast<std::size_t>(j)] = true;
      found.push_back(j);
    }
  }
  const auto none = std::ranges::find(reached, false);
  return none == reached.end() ? -1 : static_cast<int>(none - reached.begin());
}

template <class T>
void mix(std::span<T> x, std::span<T> x_tilde, double eta_tau) {
  if (eta_tau == 0 || x_tilde.empty()) return;
  const T c = momentum_share<T>(eta_tau);
  T* const a = x.data();
  T* const b = x_tilde.data();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const T towards = c * (b[i] - a[i]);
    a[i] += towards;
    b[i] -= towards;
  }
}

// The paper's constants.
A2cid2 papers_constants(const PairRates& rates) {
  const int n = rates.workers();
  if (n == 1) return {};
  if (const int alone = unreached_worker(rates); alone >= 0)
    throw UsageError(fmt::format("a2cid2: the graph has no path between workers 0 and {}", alone));
  const Matrix L = rates.laplacian();
  const Eigen::Map<const Eigen::MatrixXd> values(L.values.data(), n, n);  // symmetric
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> modes(values);
  // L^+ = V diag(0, 1/lambda_2, ...) V^T; the mean has eigenvalue 0, and comes first.
  A2cid2 constants;
  constants.chi1 = 1 / modes.eigenvalues()[1];
  for (int i = 0; i < n; ++i) {
    for (const Neighbour& j : rates.asks[static_cast<std::size_t>(i)]) {
      double resistance = 0;
      for (int k = 1; k < n; ++k) {
        const double across = modes.eigenvectors()(i, k) - modes.eigenvectors()(j.rank, k);
        resistance += across * across / modes.eigenvalues()[k];
      }
      constants.chi2 = std::max(constants.chi2, resistance / 2);
    }
  }
  constants.eta = 1 / (2 * std::sqrt(constants.chi1 * constants.chi2));
  constants.alpha_tilde = std::sqrt(constants.chi1 / constants.chi2) / 2;
  return constants;
}

}  // namespace

A2cid2 a2cid2_of(const PairRates& rates, std::optional<double> eta, std::optional<double> alpha_tilde) {
  A2cid2 constants = papers_constants(rates);
  constants.eta = eta.value_or(constants.eta);
  constants.alpha_tilde = alpha_tilde.value_or(constants.alpha_tilde);
  return constants;
}

A2cid2 at_most(A2cid2 constants, double alpha_tilde) {
  if (constants.alpha_tilde <= alpha_tilde) return constants;
  constants.chi1 = 4 * alpha_tilde * alpha_tilde * constants.chi2;
  constants.eta = 1 / (2 * std::sqrt(constants.chi1 * constants.chi2));
  constants.alpha_tilde = alpha_tilde;
  return constants;
}

void mix_momentum(std::span<float> x, std::span<float> x_tilde, double eta_tau) { mix(x, x_tilde, eta_tau); }
void mix_momentum(std::span<double> x, std::span<double> x_tilde, double eta_tau) {
  mix(x, x_tilde, eta_tau);
}

}  // namespace starling
