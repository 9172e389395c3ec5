// bandwidth-aware matching: one peer a round, over fast links if they suffice, over slow ones if
// they must. After GossipFL / SAPS-PSGD (Tang et al., "GossipFL: A Decentralized Federated Learning
// Framework with Sparsified and Adaptive Communication", IEEE TPDS 34(3), 2023), which matches over
// links above a threshold and forces the others at intervals. Here one quantity gives both:
//
//   b_ij     measured bandwidth of an exchange of i and j: the slower of its two directions
//   P        the product of the rounds so far, P = I at first
//   d_ij^2   |row i of P - row j of P|^2, the expected distance of i and j for independent values
//   round    the matching with the largest Sum b_ij d_ij^2; W_ij = 1/2 for its pairs
//
// A pair takes d_ij^2 / 2 off the squared distance to the mean. Each round therefore takes the most
// off, weighted by the bandwidth of its links. Two workers that have just met gain nothing by
// another meeting. Groups that agree internally weigh only their mutual distance, even over a slow
// link. A period ends when the squared distance is below kSmall of its first value.
//
// Any n whose links form a connected graph; 1 peer. Not exact in general.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/topology/families.h"
#include "starling/topology/matching.h"
#include "starling/topology/weights.h"

namespace starling {

namespace {

constexpr double kSmall = 1e-4;
constexpr std::size_t kMostMatchings = 1000;
constexpr double kHeaviest = 1 << 30;  // weight of a pair, as a whole number

void check_reachable(const std::vector<std::vector<double>>& b) {
  const std::size_t n = b.size();
  std::vector<bool> reached(n);
  std::vector<std::size_t> found{0};
  reached[0] = true;
  for (std::size_t next = 0; next < found.size(); ++next) {
    for (std::size_t j = 0; j < n; ++j) {
      if (reached[j] || b[found[next]][j] == 0) continue;
      reached[j] = true;
      found.push_back(j);
    }
  }
  const auto lost = std::find(reached.begin(), reached.end(), false) - reached.begin();
  if (found.size() < n) {
    throw UsageError(
        fmt::format("worker {} cannot be reached from worker 0: links with a bandwidth above 0 in both "
                    "directions must connect them",
                    lost));
  }
}

}  // namespace

Rounds bandwidth_matching(const std::vector<std::vector<double>>& bandwidth) {
  const std::size_t n = bandwidth.size();
  std::vector<std::vector<double>> b(n, std::vector<double>(n)), P(n, std::vector<double>(n));
  for (std::size_t i = 0; i < n; ++i) {
    P[i][i] = 1;
    for (std::size_t j = 0; j < n; ++j) b[i][j] = i == j ? 0 : std::min(bandwidth[i][j], bandwidth[j][i]);
  }
  check_reachable(b);

  Rounds rounds;
  std::vector<std::vector<double>> gain(n, std::vector<double>(n));
  while (n > 1 && rounds.size() < kMostMatchings) {
    double most = 0, squared_distances = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = i + 1; j < n; ++j) {
        double squares = 0;
        for (std::size_t k = 0; k < n; ++k) squares += (P[i][k] - P[j][k]) * (P[i][k] - P[j][k]);
        squared_distances += squares;
        gain[i][j] = b[i][j] * squares;
        most = std::max(most, gain[i][j]);
      }
    }
    // At first each of the pairs is 2 apart.
    if (squared_distances <= kSmall * static_cast<double>(n * (n - 1))) break;
    EdgeWeights weights(static_cast<int>(n));
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = i + 1; j < n; ++j) {
        weights.set(static_cast<int>(i), static_cast<int>(j), std::llround(gain[i][j] / most * kHeaviest));
      }
    }
    Graph& graph = rounds.emplace_back(static_cast<int>(n));
    const std::vector<int> mates = heaviest_matching(weights);
    for (std::size_t i = 0; i < n; ++i) {
      if (mates[i] <= static_cast<int>(i)) continue;
      const auto j = static_cast<std::size_t>(mates[i]);
      add_edge(graph, static_cast<int>(i), static_cast<int>(j), 0.5);
      for (std::size_t k = 0; k < n; ++k) P[i][k] = P[j][k] = (P[i][k] + P[j][k]) / 2;
    }
  }
  if (rounds.empty()) rounds.emplace_back(static_cast<int>(n));  // one worker
  return rounds;
}

}  // namespace starling
