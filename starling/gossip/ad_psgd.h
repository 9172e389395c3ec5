// AD-PSGD, asynchronous decentralized parallel SGD: Lian, Zhang, Zhang & Liu 2018 (arXiv 1710.06952).
//
//   gradient           x_i <- x_i - lr g(x^_i)              x^_i: what x_i was when the gradient began
//   averaging of i,j   x_i, x_j <- (x_i + x_j) / 2
//
// That is A2CiD2 without its momentum (a2cid2.h, eta = 0). The paper runs it on bipartite graphs: workers of the one side are
// active, they ask; those of the other are passive and answer only, so that no circle of workers waits for one another. Here
// nobody waits on any graph (pairing.h); with two sides who asks is never asked meanwhile, so fewer questions are refused.
#pragma once

#include "starling/gossip/rates.h"

namespace starling {

// The same number of averagings for each gradient of all workers, but only active workers ask. Passive are worker 0 and all at
// an even distance from it. Throws UsageError where two neighbours would be on the same side, naming them.
PairRates bipartite(const PairRates& rates);

}  // namespace starling
