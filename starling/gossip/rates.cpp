#include "starling/gossip/rates.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include <fmt/format.h>

#include "starling/core/error.h"

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

double PairRates::of_worker(int i) const {
  double all = 0;
  for (int j = 0; j < workers(); ++j) {
    if (j != i) all += of_pair(i, j);
  }
  return all;
}

PairRates PairRates::for_ranks(const std::vector<int>& ranks, int size) const {
  return {.rate = rate, .asks = starling::for_ranks(asks, ranks, size)};
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

double PairRates::until_next(int i, bool poisson, double dice) const {
  return (poisson ? -std::log(dice) : 1) * 2 / (rate * often(i));
}

int PairRates::whom(int i, double dice) const {
  const auto& row = asks[static_cast<std::size_t>(i)];
  double left = dice * often(i);
  for (const Neighbour& j : row) {
    left -= j.weight;
    if (left <= 0) return j.rank;
  }
  return row.back().rank;
}

namespace {

// p_ij is proportional to the sum over rounds of W_ji and, if pairs average, of W_ij too.
PairRates rates_along(const Schedule& schedule, double rate, bool both_ways) {
  std::vector<std::map<int, double>> sums(static_cast<std::size_t>(schedule.workers()));
  for (const Graph& graph : schedule.rounds) {
    for (int i = 0; i < graph.workers(); ++i) {
      for (const Neighbour& j : graph.neighbours[static_cast<std::size_t>(i)]) {
        if (both_ways) sums[static_cast<std::size_t>(i)][j.rank] += j.weight;
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

void check_reaches(const PairRates& rates, int from) {
  std::vector<bool> reached(static_cast<std::size_t>(rates.workers()));
  reached[static_cast<std::size_t>(from)] = true;
  for (std::deque<int> found{from}; !found.empty(); found.pop_front()) {
    for (const Neighbour& j : rates.asks[static_cast<std::size_t>(found.front())]) {
      if (reached[static_cast<std::size_t>(j.rank)]) continue;
      reached[static_cast<std::size_t>(j.rank)] = true;
      found.push_back(j.rank);
    }
  }
  const auto missing = std::ranges::find(reached, false);
  if (missing != reached.end())
    throw UsageError(
        fmt::format("no path of pushes leads from worker {} to worker {}", from, missing - reached.begin()));
}

}  // namespace

PairRates pair_rates(const Schedule& schedule, double rate) { return rates_along(schedule, rate, true); }

PairRates push_rates(const Schedule& schedule, double rate) {
  const PairRates rates = rates_along(schedule, rate, false);
  for (int i = 0; i < rates.workers(); ++i) check_reaches(rates, i);
  return rates;
}

}  // namespace starling
