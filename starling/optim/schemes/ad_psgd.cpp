// AD-PSGD, asynchronous decentralized parallel SGD: Lian, Zhang, Zhang & Liu 2018 (arXiv 1710.06952).
//
//   gradient           x_i <- x_i - lr g(x^_i)              x^_i: what x_i was when the gradient began
//   averaging of i,j   x_i, x_j <- (x_i + x_j) / 2
//
// On any graph: nobody waits, so no circle of workers can (gossip/pairing.h). gossip/ad_psgd.h says more.
#include "starling/optim/schemes/pairs.h"

namespace starling {
namespace {

class AdPsgd final : public PairScheme {
 public:
  explicit AdPsgd(const SchemeParts& parts) : PairScheme(parts) {}
};

}  // namespace

extern constinit const SchemeInfo scheme_ad_psgd{
    .name = "ad-psgd",
    .summary = "AD-PSGD: pairs of neighbours average beside training, and a step waits for nobody",
    .paper = "arXiv 1710.06952",
    .traits = pair_traits(),
    .options = kPairOptions,
    .make = make<AdPsgd>,
    .check = check_pairs,
};

}  // namespace starling
