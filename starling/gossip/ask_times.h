// The times at which a worker asks a neighbour for an averaging, counted in its own gradients. A
// Poisson process, or even times. Events of the gradient that begins now are spread over its
// expected time. The number of averagings per gradient therefore does not depend on the time of
// single gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "starling/gossip/rates.h"

namespace starling {

// The position of a worker's own clock, to resume from.
struct GossipClock {
  std::uint64_t drawn = 0;  // random numbers
  double until_next = -1;   // gradients until an averaging is due; below 0: not drawn yet
};

// Not for two threads at once.
class AskTimes {
 public:
  // poisson: otherwise a worker asks at even times, the first time being random.
  AskTimes(const PairRates& rates, int rank, std::uint64_t seed, bool poisson)
      : rates_(rates), rank_(rank), seed_(seed), poisson_(poisson) {}

  // A gradient begins: the times, in gradients from now, at which an averaging is due during it.
  std::vector<double> next_gradient();
  // The neighbour to ask at such a time.
  int whom() { return rates_.whom(rank_, dice()); }

  GossipClock position() const { return at_; }
  void set(GossipClock position) { at_ = position; }

 private:
  double dice();
  double until_next() { return rates_.until_next(rank_, poisson_, poisson_ ? dice() : 1); }

  const PairRates& rates_;
  const int rank_;
  const std::uint64_t seed_;
  const bool poisson_;
  GossipClock at_;
};

}  // namespace starling
