// DecentLaM: Yuan, Chen, Huang, Zhang, Pan, Xu & Yin 2021 (arXiv 2104.11981).
//
//   G_i  = ( x_i - Sum_j W_ij (keep x_j - lr u(g_j(x_j))) ) / lr      keep: AdamW's decay, else 1
//   m_i  <- beta m_i + G_i                                            m = 0 at first
//   x_i  <- x_i - lr m_i
//
// ATC with a momentum of the whole step, mixing included. So its distance from the optimum on
// skewed data is that of ATC without momentum; with momentum in the rule it would be 1 / (1 - beta)
// times as large. Since x - x+ = lr m, the last step is all that must be kept:
//
//   x_i  <- Sum_j W_ij (keep x_j - lr u(g_j(x_j))) - lr beta m_i,   m_i <- (x_i(old) - x_i) / lr
//
// The rule should have no momentum of its own: SGD.
#include <vector>

#include "starling/optim/schemes/step_momentum.h"

namespace starling {
namespace {

class DecentLam final : public StepMomentum {
 public:
  explicit DecentLam(const SchemeParts& parts) : StepMomentum(parts) {}

  void step() override {
    const auto scale = local_.scale();
    for (Block& block : blocks_) {
      before_.copy(block);
      update_and_send(exchange(), block, local_.rule(block), {}, scale);
    }
    for (Block& block : blocks_) {
      const auto finished = finish(exchange(), block);
      std::vector<Arrival> moves(finished.begin(), finished.end());
      moves.push_back(push(block));
      mix(block, moves, {});
      if (lr(block) > 0) m_.of(block).copy_(before_.less_parameters(block)).div_(lr(block));
    }
  }
};

constexpr SchemeOption kOptions[] = {kBeta};
constexpr RefusedWire kRefused[] = {{Wire::int4, "its momentum makes much of what int4 rounds"}};

}  // namespace

extern constinit const SchemeInfo scheme_decentlam{
    .name = "decentlam",
    .summary = "atc with a momentum of the whole step, for SGD: momentum adds no bias on skewed data",
    .paper = "arXiv 2104.11981",
    .traits = {.path = Path::inside,
               .edges = EdgeKind::lasting,
               .refused_wires = kRefused,
               .all_values = kMomentumOfAllValues,
               .own_rule = kDividesByLr,
               .kept = 2,
               .at_a_join = kMomentumAtAJoin},
    .advice = {.good_for = "large batches, skewed data and SGD with momentum, for the bytes of atc",
               .rule = "sgd",
               .bears_skew = true},
    .options = kOptions,
    .make = make<DecentLam>,
};

}  // namespace starling
