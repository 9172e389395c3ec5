// The frequency of averagings between any two workers, when workers average in pairs whenever they
// are free.
//
//   p_ij   how often worker i asks j, as a part of its averagings if all asked equally often
//   rate   averagings that a worker takes part in, in the time of one gradient, in the mean of all;
//          it asks for half of them
//   L      rate / 2 Sum_ij p_ij (e_i - e_j)(e_i - e_j)^T, the expected Laplacian; for regular
//          graphs rate (I - A)
#pragma once

#include <vector>

#include "starling/topology/graph.h"
#include "starling/topology/spectrum.h"

namespace starling {

struct PairRates {
  double rate = 1;
  std::vector<std::vector<Neighbour>>
      // Row i: the workers that i asks, by rising rank; `weight` is p_ij; rows sum to 1, unless
      // only some ask (ad_psgd.h).
      asks;

  int workers() const { return static_cast<int>(asks.size()); }
  double often(int i) const;  // Sum_j p_ij
  // Averagings in the time of one gradient: rate / 2 (p_ij + p_ji).
  double of_pair(int i, int j) const;
  double of_worker(int i) const;  // the sum of these over all j
  // The same rates for these of `size` workers, in this order. The others have no pairs.
  PairRates for_ranks(const std::vector<int>& ranks, int size) const;
  Matrix laplacian() const;

  // For an asker's clock, with `dice` uniform in (0, 1]: gradients from one averaging that it asks
  // for to the next. Workers ask for half of the averagings that they take part in; neighbours ask
  // for the others.
  double until_next(int i, bool poisson, double dice) const;
  int whom(int i, double dice) const;
};

// All edges of all rounds of a schedule, in both directions: p_ij is proportional to Sum_rounds
// (W_ij + W_ji). In an exponential graph, a worker therefore asks the one at distance n / 2, a
// neighbour in both directions, twice as often as others.
PairRates pair_rates(const Schedule& schedule, double rate);

// For pushes along directed edges: i asks the workers that take from it in any round, p_ij
// proportional to Sum_rounds W_ji. Throws UsageError, and names two workers, if one worker's values
// do not reach all others.
PairRates push_rates(const Schedule& schedule, double rate);

}  // namespace starling
