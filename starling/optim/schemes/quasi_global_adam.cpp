// Adam with quasi-global moments, QG-Adam: Lin, Karimireddy, Stich & Jaggi 2021 (arXiv 2102.04761).
//
//   m     = beta1 m^_i + (1 - beta1) g_i(x_i)                       m^ = v^ = 0 at first
//   v     = beta2 v^_i + (1 - beta2) g_i(x_i)^2
//   u     = m / (1 - beta1^t) / ( sqrt(v / (1 - beta2^t)) + eps )   t counts from 1
//   x+_i <- Sum_j W_ij ( x_j - lr u_j )
//   d     = (x_i - x+_i) / |x_i - x+_i|                             |.|: over all values
//   m^_i <- beta1 m^_i + (1 - beta1) d,   v^_i <- beta2 v^_i + (1 - beta2) d^2
//
// The moments are of what a worker does after mixing, so of all workers near it: Adam's own would
// pull workers with different data apart. Nothing more is sent than with ATC. d has length 1, also
// where gradients are 0, so workers only stand still with the learning rate. A move that may be the
// rounding of x counts as 0.
//
// The rule reads u from .grad: SGD without momentum. Its weight decay is decoupled then.
// Options::clip clips g. A step that is skipped changes no moment.
//
// Verified against the authors' code (epfml/quasi-global-momentum at 0683d7a5,
// decentralized_qg_adam.py). There m takes all of g, not 1 - beta1 of it, for smaller learning
// rates; the decay is a part of g; rounding is no case. Not verified: the paper's text.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include <c10/core/GradMode.h>

#include "starling/optim/schemes/atc.h"
#include "starling/optim/schemes/count.h"
#include "starling/optim/schemes/step_momentum.h"
#include "starling/optim/schemes/tracked.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {
namespace {

constexpr RefusedWire kRefused[] = {{Wire::int4, "its moments make much of what int4 rounds"}};
constexpr double kRounding = 1e-6;  // of a few operations in fp32, relative

class QuasiGlobalAdam final : public Atc {
 public:
  explicit QuasiGlobalAdam(const SchemeParts& parts)
      : QuasiGlobalAdam(parts, SchemeSettings(parts.options.scheme)) {}

  void attach(const Connection& connection) override {
    Atc::attach(connection);
    m_.attach(blocks_), v_.attach(blocks_), before_.attach(blocks_);
  }
  void restart() override { m_.zero(), v_.zero(), steps_ = 0; }
  void take_mean() override {}
  void step() override {
    const auto scale = local_.scale();
    if (!scale) return Atc::step(scale);
    const c10::AutoGradMode no_gradient(false);
    aim(*scale);
    Atc::step(1);
    remember();
  }
  void state(StateVisitor& visitor) override {
    m_.state(visitor, "momentum");
    v_.state(visitor, "squares");
    visit_count(visitor, "moments", steps_);
  }

 private:
  QuasiGlobalAdam(const SchemeParts& parts, const SchemeSettings& given)
      : Atc(parts),
        beta1_(given.number("beta1")),
        beta2_(given.number("beta2")),
        eps_(given.number("moment_eps")) {}

  // Writes u to .grad.
  void aim(float scale) {
    ++steps_;
    const double of_m = 1 - std::pow(beta1_, steps_), of_v = 1 - std::pow(beta2_, steps_);
    std::vector<at::Tensor> directions;
    for (Block& block : blocks_) {
      before_.copy(block);
      const at::Tensor g = gradient_of(block).mul_(scale);
      const at::Tensor m = m_.of(block).mul(beta1_).add_(g.mul(1 - beta1_));
      const at::Tensor v = v_.of(block).mul(beta2_).add_(g.square().mul_(1 - beta2_));
      // With beta2 = 1, v is 0.
      v.div_(std::max(of_v, double{std::numeric_limits<float>::min()})).sqrt_().add_(eps_);
      directions.push_back(m.div_(of_m).div_(v));
    }
    // After all gradients were read, since writing may replace a .grad of another memory order.
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      for (const Segment& s : blocks_[b].segments) write_gradient(s, directions[b]);
    }
  }

  // Takes d into the moments.
  void remember() {
    double of_x = 0, of_d = 0;  // squares of lengths
    const auto square = [](const at::Tensor& values) {
      return values.square().sum(at::kDouble).item<double>();  // waits for a GPU
    };
    for (const Block& block : blocks_) {
      of_x += square(before_.of(block));
      of_d += square(before_.less_parameters(block));
    }
    const bool moved = std::sqrt(of_d) > kRounding * std::sqrt(of_x);
    for (const Block& block : blocks_) {
      const at::Tensor& d = before_.of(block).mul_(moved ? 1 / std::sqrt(of_d) : 0);
      m_.of(block).mul_(beta1_).add_(d.mul(1 - beta1_));
      v_.of(block).mul_(beta2_).add_(d.square().mul_(1 - beta2_));
    }
  }

  const double beta1_, beta2_, eps_;
  Vectors m_, v_;
  Vectors before_;          // x before the step, then d
  std::int64_t steps_ = 0;  // t
};

constexpr SchemeOption kOptions[] = {kBeta1,
                                     kBeta2,
                                     {.name = "moment_eps",
                                      .standard = 1e-8,
                                      .range = above(0),
                                      .meaning = "eps, added to the root of the second moment"}};

}  // namespace

extern constinit const SchemeInfo scheme_quasi_global_adam{
    .name = "quasi-global-adam",
    .summary = "atc with Adam's step by moments of what workers do together, for SGD: sends no more",
    .paper = "arXiv 2102.04761",
    .traits = {.path = Path::inside,
               .refused_wires = kRefused,
               .all_values = "its moments are of values that are mixed in every step",
               .own_rule = "its moments take the place of the rule's",
               .kept = 3,
               .at_a_join = "both moments begin anew, at 0"},
    .advice = {.good_for = "skewed data and Adam's step, for the bytes of atc",
               .rule = "sgd",
               .bears_skew = true},
    .options = kOptions,
    .make = make<QuasiGlobalAdam>,
};

}  // namespace starling
