// D2: Tang, Lian, Yan, Zhang & Liu 2018 (arXiv 1803.07068).
//
//   x_i(1)    = Sum_j W_ij ( x_j(0) - lr u(g_j(0)) )
//   x_i(t+1)  = Sum_j W_ij ( 2 x_j(t) - x_j(t-1) - lr u(g_j(t)) + lr u(g_j(t-1)) )
//
// It is exact diffusion with W in place of (I + W)/2: it mixes twice as fast, but needs a W whose
// eigenvalues are above -1/3 (as the paper assumes). It can diverge if a worker misses most rounds,
// which exact-diffusion bears. diffusion.h has the form that is computed.
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/schemes/diffusion.h"
#include "starling/topology/spectrum.h"

namespace starling {
namespace {

void check_spectrum(const Options&, const SchemeSettings&, const Schedule& schedule) {
  for (const Graph& graph : schedule.rounds) {
    const double least = smallest_eigenvalue(mixing_matrix(graph));
    if (least <= -1.0 / 3 + 1e-6) {
      throw UsageError(
          fmt::format("scheme \"d2\" needs mixing weights whose eigenvalues are above -1/3: those of \"{}\" "
                      "go down to {:.3f}; scheme \"exact-diffusion\" takes them",
                      schedule.name, least));
    }
  }
}

}  // namespace

extern constinit const SchemeInfo scheme_d2{
    .name = "d2",
    .summary = "exact-diffusion that mixes twice as fast, over weights whose eigenvalues are above -1/3",
    .paper = "arXiv 1803.07068",
    .traits = kDiffusionTraits,
    .advice = {.good_for =
                   "skewed data over positive weights, where it mixes twice as fast as exact-diffusion",
               .when_one_dies = kLeavesItsPart,
               .evidence = {{kSkewStudy}}},
    .make = make<Diffusion>,
    .check = check_spectrum,
};

}  // namespace starling
