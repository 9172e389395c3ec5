// Adapt-then-combine: Lopes & Sayed 2008; for deep learning Ying et al. 2021, BlueFog (arXiv
// 2111.04287).
//
//   x_i(t+1) = Sum_j W_ij ( keep x_j(t) - lr u(g_j(x_j(t))) )    keep: AdamW's decay, else 1
//
// The mixed parameters depend on this step's gradients. So, unlike CTA, an exchange cannot overlap
// the next iteration. All blocks are updated and sent in turn, then all blocks are awaited and
// mixed in turn. The link thus works while later blocks are updated. A step takes F + B + max(U,
// C).
//
// Around another optimizer, whose step() updates all blocks at once: x <- step(x, g), then x <- Wx.
#include "starling/optim/schemes/atc.h"

namespace starling {

extern constinit const SchemeInfo scheme_atc{
    .name = "atc",
    .summary = "adapt, then combine: the exchange is inside the step",
    .paper = "arXiv 2111.04287",
    .traits = {.path = Path::inside, .local_steps = true, .takes_outer = true, .agrees = Agrees::as_topology},
    .advice = {.good_for = "small learning rates, and links fast enough to show",
               .evidence = {{{"time of a step", "docs/results/planner.md#results"}, kSkewStudy}}},
    .make = make<Atc>,
};

}  // namespace starling
