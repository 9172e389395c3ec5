// The runtime model of asynchronous gossip (gossip/gossip.h). A step takes what its worker computes: it waits for nobody. What the
// network decides is how many averagings there are for each gradient, and with them how fast workers agree.
//
//   clock      a worker asks for averagings as a Poisson process says, whose time is counted in its own gradients
//   pairing    one averaging of a worker at a time; who is asked meanwhile says no, and the asker tries again (gossip/pairing.h)
//   averaging  a question, an answer, all blocks each way, and word of them: over the same interfaces and links as in simulate.h
//
// Not in it: what gossip's own thread takes of the processors.
#pragma once

#include "starling/gossip/rates.h"
#include "starling/plan/simulate.h"

namespace starling {

struct AsynchronousForecast {
  Forecast step;     // which is all the worker's own; link as there
  double rate = 0;   // averagings that a worker takes part in, for each of its gradients, in the mean
  double taken = 0;  // seconds that an averaging takes, from the question on, in the mean
};

// Throws UsageError where the parts do not fit together.
AsynchronousForecast simulate_asynchronous(const Network& network, const Work& work, const PairRates& rates,
                                           const Horizon& run = {});

}  // namespace starling
