// Combine-then-adapt (decentralized SGD and Adam): "From Promise to Practice", arXiv 2410.11998;
// for SGD also Lian et al. 2017, D-PSGD.
//
//   x_i(t+1) = Sum_j W_ij x_j(t) - lr u(g_i(x_i(t)))
//
// x_j(t) are the parameters that the neighbours sent at the end of their LAST step. So a block has
// one whole iteration to cross the link. W of round t is the schedule's. u is the rule's direction,
// from the worker's own gradient and state.
//
// Around another optimizer, mixing and the step are two passes, and a third one writes the wire:
//
//   x <- Wx,  then  x <- step(x, g)      g is the gradient at the worker's own old x
//
// A step that reads x itself (weight decay inside the gradient) then reads the mixed x. Starling's
// own rules read the old one.
#include "starling/optim/hierarchical.h"
#include "starling/optim/schemes/ahead.h"

namespace starling {
namespace {

class Cta final : public AheadScheme {
 public:
  explicit Cta(const SchemeParts& parts) : AheadScheme(parts) {}

  void step() override {
    if (!local_.is_fused()) return step_around();
    const auto scale = local_.scale();
    for (Block& block : blocks_) update_and_send(block, finish(exchange(), block), scale);
  }

 private:
  void step_around() {
    for (Block& block : blocks_) mix(block, finish(exchange(), block), {});
    local_.all();
    for (Block& block : blocks_) mix_and_send(block);
  }
};

}  // namespace

extern constinit const SchemeInfo scheme_cta{
    .name = "cta",
    .summary = "combine, then adapt: the exchange has a whole iteration to complete",
    .paper = "arXiv 2410.11998",
    .traits = {.path = Path::ahead, .local_steps = true, .agrees = Agrees::as_topology, .kept_if_local = 1},
    .advice = {.good_for = "most runs: the exchange hides behind the whole iteration",
               .evidence = {{{"accuracy beside all-reduce", "docs/results.md#accuracy"},
                             {"time to a loss, and of a step, beside DDP and Decent-DP",
                              "docs/results.md#time-to-quality"},
                             kSkewStudy,
                             kSlowLinkStudy}}},
    .make = make<Cta>,
    .make_in_nodes = make<Hierarchical>,
};

}  // namespace starling
