// Exact diffusion: Yuan, Ying, Zhao & Sayed 2019 (arXiv 1702.05122). It reaches the optimum of the
// sum of all workers' losses with a constant learning rate, however different their data are. ATC
// and CTA stop at a distance that grows with the learning rate and with that difference.
//
//   psi_i(t)  = x_i(t) - lr u(g_i(x_i(t)))
//   phi_i(t)  = psi_i(t) + x_i(t) - psi_i(t-1)          psi_i(-1) = x_i(0)
//   x_i(t+1)  = Sum_j (I + W)/2_ij phi_j(t)
//
// diffusion.h has the form that is computed. As with ATC, the exchange is inside the step.
#include "starling/optim/schemes/diffusion.h"

namespace starling {
namespace {

class ExactDiffusion final : public Diffusion {
 public:
  explicit ExactDiffusion(const SchemeParts& parts) : Diffusion(parts, 0.5F) {}
};

}  // namespace

extern constinit const SchemeInfo scheme_exact_diffusion{
    .name = "exact-diffusion",
    .summary = "atc with a correction: a constant learning rate reaches the common optimum on skewed data",
    .paper = "arXiv 1702.05122",
    .traits = kDiffusionTraits,
    .advice = {.good_for = "skewed data, for the bytes of atc",
               .when_one_dies = kLeavesItsPart,
               .evidence = {{kSkewStudy}}},
    .make = make<ExactDiffusion>,
};

}  // namespace starling
