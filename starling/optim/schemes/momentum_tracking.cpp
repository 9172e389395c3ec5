// Momentum tracking: Takezawa, Bao, Niwa, Sato & Yamada 2023 (arXiv 2209.15505).
//
//   u_i <- beta u_i + g_i(x_i)
//   x_i <- Sum_j W_ij x_j - lr (u_i - c_i)
//   c_i <- Sum_j W_ij (c_j - u_j) + u_i
//
// With y = u - c this is gradient tracking of the momentum u in place of the gradient (tracking.h).
// The momentum is one of all workers, so its convergence does not depend on how their data differ.
// Here c = 0 and u = 0 at first, so y is the first gradient; the paper begins at the mean of all.
// The rule should have no momentum of its own: SGD.
#include "starling/optim/schemes/step_momentum.h"
#include "starling/optim/schemes/tracking.h"

namespace starling {
namespace {

class MomentumTracking final : public Tracking {
 public:
  explicit MomentumTracking(const SchemeParts& parts)
      : Tracking(parts, SchemeSettings(parts.options.scheme).number("beta")) {}
};

constexpr SchemeOption kOptions[] = {kBeta};
constexpr SchemeTraits traits() {
  SchemeTraits all = kTrackingTraits;
  all.at_a_join = "momentum and the tracked gradients begin anew";
  all.all_values = kMomentumOfAllValues;
  return all;
}

}  // namespace

extern constinit const SchemeInfo scheme_momentum_tracking{
    .name = "momentum-tracking",
    .summary = "gradient-tracking of the momentum, for SGD: its speed does not depend on the data's skew",
    .paper = "arXiv 2209.15505",
    .traits = traits(),
    .advice = {.good_for = "skewed data and SGD with momentum, at twice the bytes",
               .rule = "sgd",
               .when_one_dies = kLeavesItsPart,
               .evidence = {{kSkewStudy}}},
    .options = kOptions,
    .make = make<MomentumTracking>,
};

}  // namespace starling
