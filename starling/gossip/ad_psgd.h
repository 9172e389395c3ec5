// AD-PSGD, asynchronous decentralized parallel SGD: Lian, Zhang, Zhang & Liu 2018 (arXiv
// 1710.06952).
//
//   gradient           x_i <- x_i - lr g(x^_i)              x^_i: x_i at the gradient's begin
//   averaging of i,j   x_i, x_j <- (x_i + x_j) / 2
//
// This is A2CiD2 without its momentum (a2cid2.h, eta = 0). The paper runs it on bipartite graphs.
// The workers of one side are active and ask; those of the other are passive and only answer, so
// that no cycle of workers can deadlock. Here no worker waits on any graph (pairing.h). With two
// sides an asker is never asked, so fewer requests are refused.
#pragma once

#include "starling/gossip/rates.h"

namespace starling {

// The same number of averagings for each gradient of all workers, but only active workers ask.
// Worker 0 is passive, and so are all workers at an even distance from it. Throws UsageError if two
// neighbours would be on the same side, and names them.
PairRates bipartite(const PairRates& rates);

}  // namespace starling
