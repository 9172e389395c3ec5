#include "starling/gossip/rates.h"

#include <map>

namespace starling {
namespace {

double weight_of(const std::vector<Neighbour>& row, int rank) {
  for (const Neighbour& j : row) {
    if (j.rank == rank) return j.weight;
  }
  return 0;
}

}  // namespace

double PairRates::often(int i) const {
  double all = 0;
  for (const Neighbour& j : asks[static_cast<std::size_t>(i)]) all += j.weight;
  return all;
}

double PairRates::of_pair(int i, int j) const {
  return rate / 2 *
         (weight_of(asks[static_cast<std::size_t>(i)], j) + weight_of(asks[static_cast<std::size_t>(j)], i));
}

Matrix PairRates::laplacian() const {
  Matrix L(workers());
  for (int i = 0; i < workers(); ++i) {
    for (const Neighbour& j : asks[static_cast<std::size_t>(i)]) {
      const double often = rate / 2 * j.weight;
      L(i, i) += often, L(j.rank, j.rank) += often;
      L(i, j.rank) -= often, L(j.rank, i) -= often;
    }
  }
  return L;
}

PairRates pair_rates(const Schedule& schedule, double rate) {
  std::vector<std::map<int, double>> sums(static_cast<std::size_t>(schedule.workers()));
  for (const Graph& graph : schedule.rounds) {
    for (int i = 0; i < graph.workers(); ++i) {
      for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(i)]) {
        sums[static_cast<std::size_t>(i)][j.rank] += j.weight;
        sums[static_cast<std::size_t>(j.rank)][i] += j.weight;
      }
    }
  }
  PairRates rates{.rate = rate, .asks = {}};
  for (const auto& row : sums) {
    double all = 0;
    for (const auto& [rank, sum] : row) all += sum;
    rates.asks.emplace_back();
    for (const auto& [rank, sum] : row) rates.asks.back().push_back({rank, sum / all});
  }
  return rates;
}

}  // namespace starling
