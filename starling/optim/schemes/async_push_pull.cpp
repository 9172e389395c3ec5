// Asynchronous push-pull: Pu, Shi, Xu & Nedic 2021 (arXiv 1810.06653), in its form G-Push-Pull,
// where one pair at a time meets.
//
//   x_i, y_i          parameters and tracked gradient;  y = 0 at first
//   g_i               the gradient that is in y_i;  g = 0 at first
//   d                 the change that the local rule makes with y_i in place of the gradient
//   gradient of i     y_i <- y_i + g(x_i) - g_i,  g_i <- g(x_i);  x_i <- x_i + d
//   push from i to j  x_j <- (x_i + x_j) / 2                                j pulls x_i
//                     y_j <- y_j + y_i / 2,  y_i <- y_i / 2                 i pushes y_i
//
// The sum of all y is the sum of the workers' last gradients. If all x agree and no y moves them,
// the sum of all gradients is zero. So with a constant learning rate, workers converge exactly to
// the common optimum, whatever their data and speeds are. A worker that makes four times as many
// gradients only replaces its own. Without tracking (async-push-sum, ad-psgd) it would count four
// times. With noisy gradients of batches, workers come as near as the learning rate allows.
//
// A lost exchange moves nothing. An exchange that is mended late moves its y, but not its x, which
// would be old. A dead worker takes its own y along, and leaves the part of its gradient that it
// had pushed. This part stays in the others' steps until y = g = 0 is set on all workers: by
// restart() (a checkpoint is loaded) or attach() (a parameter group is added). A worker that makes
// no gradients for now (it waits at an average, a checkpoint or the end) removes its own gradient
// and hands the rest over:
//
//   stand by   y_i <- y_i - g_i,  g_i <- 0;  then once x_i and all of y_i to one j;  nobody
//              pushes to i
//
// A gradient that is not finite must not spread. A segment with such a gradient keeps its earlier
// g, with a warning.
//
// This scheme sends twice as many bytes as the others, and keeps 8 bytes per value (12 on a GPU).
// The rule reads y from .grad.
#include <cstddef>

#include <ATen/ops/zeros.h>

#include "starling/optim/schemes/pairs.h"
#include "starling/optim/schemes/tracked.h"
#include "starling/optim/schemes/weights.h"

namespace starling {
namespace {

class PushPull final : public PairScheme {
 public:
  explicit PushPull(const SchemeParts& parts) : PairScheme(parts) {}

  void attach(const Connection& connection) override {
    PairScheme::attach(connection);
    tracker_ = {};
    g_.clear();
    for (const Block& block : blocks_)
      g_.push_back(at::zeros({block.length}, at::TensorOptions(at::kFloat).device(block.device)));
  }
  void restart() override {
    PairScheme::restart();
    for (const at::Tensor& g : g_) g.zero_();
  }
  void step() override {
    resume();
    track_gradients();
    adapt();
    give();
  }
  void stand_by() override;

 private:
  void choose(GossipOptions& options, const Schedule& schedule) const override {
    options.rates = push_rates(schedule, settings_.number("rate"));
    options.algorithm = pair_push_pull();
  }
  void track_gradients();

  Tracker tracker_;
  std::vector<at::Tensor> g_;  // by block
};

void PushPull::stand_by() {
  each_y([&](const Block& block, const at::Tensor& y) {
    const at::Tensor& g = g_[static_cast<std::size_t>(block.index)];
    y.sub_(g);
    g.zero_();
  });
  PairScheme::stand_by();
}

void PushPull::track_gradients() {
  tracker_.track(
      [this](const auto& f) {
        each_y([&](const Block& block, const at::Tensor& y) {
          f(block, g_[static_cast<std::size_t>(block.index)], y);
        });
      },
      /*beta=*/0, world_.log);
}

constexpr RefusedWire kRefused[] = {
    {Wire::int8, kNoModularPush}, {Wire::int4, kNoModularPush}, {Wire::fp16, kTooSmallForFp16}};
constexpr SchemeTraits traits() {
  SchemeTraits all = pair_traits(EdgeKind::directed);
  all.contents.vectors = 2;
  all.refused_wires = kRefused;
  all.exact = all.sums_gradients = true;
  all.kept = 4;
  all.at_a_join = "the tracked gradients begin anew";
  return all;
}

}  // namespace

extern constinit const SchemeInfo scheme_async_push_pull{
    .name = "async-push-pull",
    .summary =
        "async-push-sum with a tracked gradient: a constant learning rate reaches what is best for "
        "all, whatever the workers' data and speeds",
    .paper = "arXiv 1810.06653",
    .traits = traits(),
    .advice = {.good_for = "workers of uneven speed with skewed data, on directed links",
               .when_one_dies = kLeavesItsPart},
    .options = kPairOptions,
    .make = make<PushPull>,
    .check = check_pushes,
};

}  // namespace starling
