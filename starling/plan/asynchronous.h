// The runtime model of asynchronous gossip (gossip/gossip.h). The time of a step is the worker's
// own computation, because the worker waits for no other. The network determines the number of
// averagings per gradient, and with it how fast workers agree.
//
//   clock      a worker requests averagings as a Poisson process, whose time is counted in its own
//              gradients
//   pairing    a worker takes part in one averaging at a time. A busy worker refuses requests, and
//              the asker tries again (gossip/pairing.h)
//   averaging  a request, an answer, all blocks in both directions, and their acknowledgement, over
//              the interfaces and links of simulate.h
//
// The model leaves out the processor time of gossip's own thread.
#pragma once

#include "starling/gossip/rates.h"
#include "starling/plan/simulate.h"

namespace starling {

struct AsynchronousForecast {
  Forecast step;     // all of it the worker's own computation; `link` as in simulate.h
  double rate = 0;   // averagings of a worker per gradient of its own, in the mean
  double taken = 0;  // seconds of an averaging from its request on, in the mean
};

// Throws UsageError if the parts do not fit together.
AsynchronousForecast simulate_asynchronous(const Network& network, const Work& work, const PairRates& rates,
                                           const Horizon& run = {});

}  // namespace starling
