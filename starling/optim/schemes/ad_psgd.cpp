// AD-PSGD, asynchronous decentralized parallel SGD: Lian, Zhang, Zhang & Liu 2018 (arXiv
// 1710.06952).
//
//   gradient           x_i <- x_i - lr g(x^_i)     x^_i: x_i at the gradient's start
//   averaging of i,j   x_i, x_j <- (x_i + x_j) / 2
//
// It runs on any graph: nobody waits, so no cycle of workers can deadlock (gossip/pairing.h). See
// gossip/ad_psgd.h.
#include "starling/optim/schemes/pairs.h"

namespace starling {

extern constinit const SchemeInfo scheme_ad_psgd{
    .name = "ad-psgd",
    .summary = "AD-PSGD: pairs of neighbours average beside training, and a step waits for nobody",
    .paper = "arXiv 1710.06952",
    .traits = pair_traits(),
    .advice = {.good_for = "workers of uneven speed, any two of them connected",
               .topology = "static-exponential",
               .evidence = {{{"this graph beside a ring with momentum", "docs/a2cid2.md#results"}}}},
    .options = kPairOptions,
    .make = make<PairScheme>,
    .check = check_pairs,
};

}  // namespace starling
