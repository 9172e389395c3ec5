#include "starling/topology/recursion.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

namespace starling {
namespace {

double distance_to_mean(std::span<const double> x) {
  const double mean = std::reduce(x.begin(), x.end()) / static_cast<double>(x.size());
  double squares = 0;
  for (const double value : x) squares += (value - mean) * (value - mean);
  return std::sqrt(squares);
}

}  // namespace

std::vector<double> mixed_by(const Graph& graph, std::span<const double> x) {
  std::vector<double> next(x.begin(), x.end());
  for (std::size_t i = 0; i < next.size(); ++i) {
    for (const Neighbour& j : graph.neighbours[i])
      next[i] += j.weight * (x[static_cast<std::size_t>(j.rank)] - x[i]);
  }
  return next;
}

bool brings_together(const Schedule& schedule,
                     const std::function<void(const Graph& round, std::vector<double>& x)>& step) {
  std::vector<double> x(static_cast<std::size_t>(schedule.workers()));
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  std::ranges::generate(x, [&] { return normal(random); });
  const double start = distance_to_mean(x);
  const auto rounds = std::max<long long>(300, 30 * static_cast<long long>(schedule.rounds.size()));
  for (long long t = 0; t < rounds && distance_to_mean(x) < 1e3 * start; ++t) step(schedule.at(t), x);
  return distance_to_mean(x) <= start;
}

}  // namespace starling
