// Quasi-global momentum: Lin, Karimireddy, Stich & Jaggi 2021, QG-DSGDm (arXiv 2102.04761).
//
//   x+_i  <- Sum_j W_ij ( keep (x_j - lr beta m_j) - lr u(g_j(x_j)) )  keep: AdamW's decay, else 1
//   m_i   <- mu m_i + (1 - mu) (x_i - x+_i) / lr                          m = 0 at first
//
// m is the momentum of what a worker does after mixing, so of all workers near it. Momentum of the
// own gradients alone would pull workers with different data apart. Nothing more is sent than with
// ATC. The rule should have no momentum of its own: SGD. The paper sets mu = beta.
#include <vector>

#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {
namespace {

class QuasiGlobal final : public Scheme {
 public:
  explicit QuasiGlobal(const SchemeParts& parts)
      : Scheme(parts),
        beta_(SchemeSettings(options_.scheme).number("beta")),
        mu_(SchemeSettings(options_.scheme).automatic("mu").value_or(beta_)) {}

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    m_.attach(blocks_), before_.attach(blocks_);
  }
  void restart() override { m_.zero(); }
  void state(StateVisitor& visitor) override { m_.state(visitor, "momentum"); }

  void step() override {
    const auto scale = local_.scale();
    for (Block& block : blocks_) {
      before_.copy(block);
      const Arrival push = m_.plus(block, static_cast<float>(-lr(block) * beta_));
      update_and_send(exchange(), block, local_.rule(block), {&push, 1}, scale);
    }
    for (Block& block : blocks_) {
      mix(block, finish(exchange(), block), {});
      if (lr(block) > 0) m_.of(block).mul_(mu_).add_(before_.less_parameters(block), (1 - mu_) / lr(block));
    }
  }

 private:
  double lr(const Block& block) const { return rule_values(local_.rule(block)).front(); }

  const double beta_, mu_;
  Vectors m_, before_;
};

constexpr SchemeOption kOptions[] = {
    {.name = "beta",
     .standard = 0.9,
     .range = from_below(0, 1),
     .meaning = "the scheme's own momentum, beta in x - lr (beta m + u); 0: none"},
    {.name = "mu",
     .standard = Automatic{},
     .range = from_below(0, 1),
     .meaning = "the share of m that a step keeps; automatic: beta"}};

}  // namespace

extern constinit const SchemeInfo scheme_quasi_global{
    .name = "quasi-global",
    .summary = "atc with the momentum of what workers do together, for SGD: bears skewed data, sends no more",
    .paper = "arXiv 2102.04761",
    .traits = {.path = Path::inside,
               .all_values = "its momentum is of values that are mixed in every step",
               .own_rule = "its momentum is divided by the rule's learning rate"},
    .options = kOptions,
    .make = make<QuasiGlobal>,
};

}  // namespace starling
