// Decentralized AMSGrad: Chen, Karimi, Zhao & Li 2023 (arXiv 2109.03194).
//
//   m_i  <- beta1 m_i + (1 - beta1) g_i(x_i)                        m = v = 0 at first
//   v_i  <- beta2 v_i + (1 - beta2) g_i(x_i)^2
//   u_i  <- Sum_j W_ij u_j                                          u = v^ = floor at first
//   x_i  <- Sum_j W_ij x_j - lr m_i / sqrt(max(u_i, floor))
//   u_i  <- u_i + max(v^_i, v_i) - v^_i,   v^_i <- max(v^_i, v_i)
//
// u tracks the mean of all workers' v^, as y tracks the mean of all m in tracking.h. So workers
// divide their momentum by nearly the same, the second moments up to the last step. Dividing by
// their own, they would weigh their gradients differently, and meet beside the common optimum. x
// and u are both known at the end of a step. So the paper's two exchanges are one, sent ahead.
//
//   rule     reads m / sqrt(max(u, floor)) from .grad: SGD without momentum. Its weight decay is
//            decoupled then. Options::clip clips what it reads.
//   floor    the paper's epsilon. The first step goes by (1 - beta1) g / sqrt(floor), so it should
//            not be far below the squares of gradients. u and v^ are kept less the floor.
//
// A value of the gradient whose square is not finite counts as 0. A parameter that was not used has
// gradient 0. A lost exchange keeps the sum of all u, which is that of all v^. If a worker dies,
// its part of it stays with the others, until restart() sets u = v^ and m = 0 on all workers:
// another member, or a mean that was kept. v and v^ stay then, or the next steps would be the long
// ones of a start.
//
// Verified against code of third parties (cziqin/Automated_Stepsizes at 65486ed9, DAMSGrad in
// Neural_network/ops.py): no bias correction, u from before this step's gradient, betas and floor.
// There v begins at the floor. Not verified: the paper's text, its numbers, and where v begins.
#include <utility>

#include <c10/core/GradMode.h>

#include "starling/optim/schemes/step_momentum.h"
#include "starling/optim/schemes/tracking.h"

namespace starling {
namespace {

// The base's y is u, and its m is v^.
class TrackingAdam final : public Tracking {
 public:
  explicit TrackingAdam(const SchemeParts& parts)
      : TrackingAdam(parts, SchemeSettings(parts.options.scheme)) {}

  void attach(const Connection& connection) override {
    Tracking::attach(connection);
    momentum_.attach(blocks_), squares_.attach(blocks_);
  }
  void restart() override {
    momentum_.zero();
    for (const Block& block : blocks_) y_.of(block).copy_(m_.of(block));
  }
  void state(StateVisitor& visitor) override {
    Tracking::state(visitor);
    momentum_.state(visitor, "momentum");
    squares_.state(visitor, "squares");
  }

 private:
  TrackingAdam(const SchemeParts& parts, const SchemeSettings& given)
      : Tracking(parts),
        beta1_(given.number("beta1")),
        beta2_(given.number("beta2")),
        floor_(given.number("floor")) {}

  void track() override {
    const c10::AutoGradMode no_gradient(false);
    const bool before = std::exchange(finite_, true);
    for (const Block& block : blocks_) take_gradient(block);
    if (before && !finite_)
      world_.log(Level::warning, "the gradient is not finite: such values of it count as 0");
    // After all gradients were read, since writing may replace a .grad of another memory order.
    for (const Block& block : blocks_) {
      const at::Tensor &u = y_.of(block), &v_hat = m_.of(block);
      const at::Tensor direction = momentum_.of(block).div(u.clamp_min(0).add_(floor_).sqrt_());
      for (const Segment& s : block.segments) write_gradient(s, direction);
      const at::Tensor largest = squares_.of(block).sub(floor_).maximum(v_hat);
      u.add_(largest.sub(v_hat));
      v_hat.copy_(largest);
    }
  }

  // Multiplies and adds in two operations, which round the same wherever a value lies.
  void take_gradient(const Block& block) {
    const at::Tensor &m = momentum_.of(block), &v = squares_.of(block), g = gradient_of(block);
    const at::Tensor finite = g.square().isfinite();
    if (!finite.all().item<bool>()) {  // waits for a GPU
      finite_ = false;
      g.masked_fill_(finite.logical_not(), 0);
    }
    m.mul_(beta1_).add_(g.mul(1 - beta1_));
    v.mul_(beta2_).add_(g.square().mul_(1 - beta2_));
  }

  const double beta1_, beta2_, floor_;
  Vectors momentum_, squares_;
  bool finite_ = true;  // the last gradient was
};

constexpr SchemeOption kOptions[] = {
    kBeta1,
    kBeta2,
    {.name = "floor",
     .standard = 1e-6,
     .range = above(0),
     .meaning = "the least second moment, and the first; the first step is (1 - beta1) g / sqrt(floor)"}};
constexpr SchemeTraits traits() {
  SchemeTraits all = kTrackingTraits;
  all.exact = false;
  all.kept = 4;
  all.at_a_join = "both moments and the tracked gradients begin anew";
  return all;
}

}  // namespace

extern constinit const SchemeInfo scheme_tracking_adam{
    .name = "tracking-adam",
    .summary = "cta with AMSGrad's step by one second moment of all workers, for SGD: twice the bytes",
    .paper = "arXiv 2109.03194",
    .traits = traits(),
    .advice = {.good_for = "Adam's step on data that differ, hidden behind the iteration, at twice the bytes",
               .rule = "sgd",
               .when_one_dies = "its part stays in the others' second moments, until a checkpoint is loaded"},
    .options = kOptions,
    .make = make<TrackingAdam>,
};

}  // namespace starling
