// Push-DIGing: Nedic, Olshevsky & Shi 2017 (arXiv 1607.03218, Algorithm 2), gradient tracking over
// directed graphs that change.
//
//   y_i(t)    = Sum_j p_ij y_j(t-1) + g_i(z_i(t)) - g_i(z_i(t-1))
//   x_i(t+1)  = Sum_j p_ij ( x_j(t) - lr w_j(t) u(y_j(t) / w_j(t)) )
//
//   p_ij, w, z   as in pushes.h: z = x / w are the parameters
//   y, g         0 before the first step
//
// The paper's u(y) is y: then w u(y / w) = y. Its x and w are called u and v, its z is x. Here the
// rule takes y / w, which comes near to the mean of all workers' gradients: z <- z - lr u. So
// workers that agree on z and on y / w make the same step with every rule, also with Adam's, and
// weight decay acts on z.
//
// The sum of all y is that of all workers' last gradients, whatever p is. So a constant learning
// rate reaches the optimum of the sum of all workers' losses, where push-sum stops beside it. y is
// kept divided by w. It travels behind z, and w behind both: a push moves x, y and w together, or
// none of them.
//
// If all w stay 1, x is ATC's with y in place of the gradient: x(t+1) = W (x(t) - lr y(t)).
// gradient-tracking is CTA's, W x(t) - lr y(t). The equation of y is the same.
//
// A gradient that is not finite must not spread: its segment keeps its earlier g. If a worker dies,
// the part of its gradient that it had pushed stays in the others' y until y = g = 0 is set on all
// workers: by restart() (a checkpoint is loaded). The rule reads y / w from .grad.
#include "starling/optim/schemes/pushes.h"
#include "starling/optim/schemes/tracked.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {
namespace {

constexpr std::size_t kVectors = 2;  // z and y / w

class PushDiging final : public PushScheme {
 public:
  explicit PushDiging(const SchemeParts& parts) : PushScheme(parts, kVectors) {}

  void attach(const Connection& connection) override {
    PushScheme::attach(connection);
    y_.attach(blocks_);
    g_.attach(blocks_);
  }
  void restart() override {
    PushScheme::restart();
    y_.zero();
    g_.zero();
  }
  void take_mean() override {
    for (const Block& block : blocks_) y_.of(block).mul_(w(block));  // w will be 1
    PushScheme::restart();
  }
  void state(StateVisitor& visitor) override {
    PushScheme::state(visitor);
    y_.state(visitor, "tracked");
    g_.state(visitor, "own");
  }
  void step() override {
    tracker_.track(
        [this](const auto& f) {
          for (const Block& block : blocks_) f(block, g_.of(block), y_.of(block));
        },
        /*beta=*/0, world_.log, weights());
    adapt_and_push();
    for (Block& block : blocks_) {
      std::vector<Arrival> mixes = absorb(block);
      mix(block, mixes, {});
      for (Arrival& one : mixes) one.theirs = second_vector(one.theirs, block);
      y_.mix(block, mixes);
    }
  }

 private:
  void adapt_and_push() {
    const auto scale = local_.is_fused() ? local_.scale() : std::nullopt;
    if (!local_.is_fused()) local_.all();
    for (Block& block : blocks_) {
      const Outgoing outgoing = exchange().outgoing(block.index);
      update_and_write(block, local_.is_fused() ? local_.rule(block) : Rule{}, {}, outgoing, scale, y_,
                       sender(block, outgoing));
    }
  }

  Tracker tracker_;
  Vectors y_, g_;  // y / w, and the gradient that is in y
};

constexpr RefusedWire kRefused[] = {
    {Wire::fp16, kTooSmallForFp16}, {Wire::int8, kNoModularPush}, {Wire::int4, kNoModularPush}};

constexpr SchemeTraits traits() {
  SchemeTraits all = push_traits(kVectors);
  all.path = Path::inside;
  all.refused_wires = kRefused;
  all.exact = all.sums_gradients = true;
  all.kept = 2;
  all.at_a_join = "the weights begin anew, at 1, and so do the tracked gradients";
  return all;
}

}  // namespace

extern constinit const SchemeInfo scheme_push_diging{
    .name = "push-diging",
    .summary = "push-sum with a tracked gradient, twice the bytes: exact on skewed data, over directed edges",
    .paper = "arXiv 1607.03218",
    .traits = traits(),
    .advice = {.good_for = "skewed data over directed links, at twice the bytes",
               .when_one_dies = kLeavesItsPart},
    .make = make<PushDiging>,
    .check = check_shares,
};

}  // namespace starling
