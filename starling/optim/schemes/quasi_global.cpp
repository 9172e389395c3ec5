// Quasi-global momentum: Lin, Karimireddy, Stich & Jaggi 2021, QG-DSGDm (arXiv 2102.04761).
//
//   x+_i  <- Sum_j W_ij ( keep (x_j - lr beta m_j) - lr u(g_j(x_j)) )  keep: AdamW's decay, else 1
//   m_i   <- mu m_i + (1 - mu) (x_i - x+_i) / lr                          m = 0 at first
//
// m is the momentum of what a worker does after mixing, so of all workers near it. Momentum of the
// own gradients alone would pull workers with different data apart. Nothing more is sent than with
// ATC. The rule should have no momentum of its own: SGD. The paper sets mu = beta.
#include "starling/optim/schemes/step_momentum.h"

namespace starling {
namespace {

class QuasiGlobal final : public StepMomentum {
 public:
  explicit QuasiGlobal(const SchemeParts& parts)
      : StepMomentum(parts), mu_(SchemeSettings(options_.scheme).automatic("mu").value_or(beta_)) {}

  void step() override {
    const auto scale = local_.scale();
    for (Block& block : blocks_) {
      before_.copy(block);
      update_and_send(exchange(), block, local_.rule(block), {{push(block)}}, scale);
    }
    for (Block& block : blocks_) {
      mix(block, finish(exchange(), block), {});
      if (lr(block) > 0) m_.of(block).mul_(mu_).add_(before_.less_parameters(block), (1 - mu_) / lr(block));
    }
  }

 private:
  const double mu_;
};

constexpr SchemeOption kOptions[] = {kBeta,
                                     {.name = "mu",
                                      .standard = Automatic{"beta"},
                                      .range = from_below(0, 1),
                                      .meaning = "the share of m that a step keeps"}};

}  // namespace

extern constinit const SchemeInfo scheme_quasi_global{
    .name = "quasi-global",
    .summary = "atc with the momentum of what workers do together, for SGD: bears skewed data, sends no more",
    .paper = "arXiv 2102.04761",
    .traits = {.path = Path::inside,
               .all_values = kMomentumOfAllValues,
               .own_rule = kDividesByLr,
               .kept = 2,
               .at_a_join = kMomentumAtAJoin},
    .advice = {.good_for = "skewed data and SGD with momentum, for the bytes of atc",
               .rule = "sgd",
               .bears_skew = true,
               .evidence = {{kSkewStudy}}},
    .options = kOptions,
    .make = make<QuasiGlobal>,
};

}  // namespace starling
