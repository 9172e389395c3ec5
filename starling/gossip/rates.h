// Who averages with whom, and how often, where workers average in pairs whenever they are free.
//
//   p_ij   how often worker i asks j, as part of the averagings that it would ask for if all asked equally often
//   rate   averagings that a worker takes part in, in the time of one gradient, in the mean of all: half of them it asks for
//   L      rate / 2 Sum_ij p_ij (e_i - e_j)(e_i - e_j)^T, the expected Laplacian; for regular graphs rate (I - A)
#pragma once

#include <vector>

#include "starling/topology/graph.h"
#include "starling/topology/spectrum.h"

namespace starling {

struct PairRates {
  double rate = 1;
  std::vector<std::vector<Neighbour>>
      asks;  // row i: whom i asks, by rising rank; `weight` is p_ij. Rows sum to 1, unless only some ask (ad_psgd.h)

  int workers() const { return static_cast<int>(asks.size()); }
  double often(int i) const;           // Sum_j p_ij
  double of_pair(int i, int j) const;  // averagings in the time of one gradient: rate / 2 (p_ij + p_ji)
  Matrix laplacian() const;

  // Of an asker's clock, with `dice` uniform in (0, 1]. Gradients from one averaging that it asks for to the next: of those that
  // workers take part in they ask for half, the others are asked for by neighbours.
  double until_next(int i, bool poisson, double dice) const;
  int whom(int i, double dice) const;
};

// All edges of all rounds of a schedule, whatever their direction: p_ij is proportional to Sum_rounds (W_ij + W_ji). So an
// exponential graph asks the worker at distance n / 2, which is a neighbour in both directions, twice as often as others.
PairRates pair_rates(const Schedule& schedule, double rate);

// For pushes along directed edges: i asks those that take of it in any round, p_ij proportional to Sum_rounds W_ji. Throws
// UsageError where what one worker has does not reach all others, naming two.
PairRates push_rates(const Schedule& schedule, double rate);

}  // namespace starling
