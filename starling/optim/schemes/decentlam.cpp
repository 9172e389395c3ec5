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

#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {
namespace {

class DecentLam final : public Scheme {
 public:
  explicit DecentLam(const SchemeParts& parts)
      : Scheme(parts), beta_(SchemeSettings(options_.scheme).number("beta")) {}

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
      update_and_send(exchange(), block, local_.rule(block), {}, scale);
    }
    for (Block& block : blocks_) {
      const auto finished = finish(exchange(), block);
      std::vector<Arrival> moves(finished.begin(), finished.end());
      moves.push_back(m_.plus(block, static_cast<float>(-lr(block) * beta_)));
      mix(block, moves, {});
      if (lr(block) > 0) m_.of(block).copy_(before_.less_parameters(block)).div_(lr(block));
    }
  }

 private:
  double lr(const Block& block) const { return rule_values(local_.rule(block)).front(); }

  const double beta_;
  Vectors m_, before_;
};

constexpr SchemeOption kOptions[] = {{
    .name = "beta",
    .standard = 0.9,
    .range = from_below(0, 1),
    .meaning = "the scheme's own momentum, beta in m <- beta m + G; 0: atc",
}};
constexpr RefusedWire kRefused[] = {{Wire::int4, "its momentum makes much of what int4 rounds"}};

}  // namespace

extern constinit const SchemeInfo scheme_decentlam{
    .name = "decentlam",
    .summary = "atc with a momentum of the whole step, for SGD: momentum adds no bias on skewed data",
    .paper = "arXiv 2104.11981",
    .traits = {.path = Path::inside,
               .edges = EdgeKind::lasting,
               .refused_wires = kRefused,
               .all_values = "its momentum is of values that are mixed in every step",
               .own_rule = "its momentum is divided by the rule's learning rate"},
    .options = kOptions,
    .make = make<DecentLam>,
};

}  // namespace starling
