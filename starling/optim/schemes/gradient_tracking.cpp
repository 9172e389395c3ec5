// Gradient tracking in rounds, DIGing: Nedic, Olshevsky & Shi 2017 (arXiv 1607.03218); also Qu & Li
// 2018 (arXiv 1605.07112).
//
//   y_i(t)    = Sum_j W_ij y_j(t-1) + g_i(x_i(t)) - g_i(x_i(t-1))
//   x_i(t+1)  = Sum_j W_ij x_j(t) - lr u(y_i(t))
//
// It reaches the optimum of the sum of all workers' losses with a constant learning rate, however
// different their data are, also over graphs that change. tracking.h says how.
#include "starling/optim/schemes/tracking.h"

namespace starling {

extern constinit const SchemeInfo scheme_gradient_tracking{
    .name = "gradient-tracking",
    .summary =
        "cta with a tracked gradient, twice the bytes: exact on skewed data, also over changing graphs",
    .paper = "arXiv 1607.03218",
    .traits = kTrackingTraits,
    .advice = {.good_for =
                   "skewed data, hidden behind the iteration and over changing graphs, at twice the bytes",
               .when_one_dies = kLeavesItsPart,
               .evidence = {{kSkewStudy}}},
    .make = make<Tracking>,
};

}  // namespace starling
