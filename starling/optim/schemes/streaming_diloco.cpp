// Streaming DiLoCo: Douillard et al. 2025 (arXiv 2501.18512). One fragment of the parameters after
// the other is merged, while local steps go on.
//
//   P           fragments: Options::one_in;  H/P: local steps for each, Options::every
//   s_i         the fragment of x_i as it was sent, H/P local steps ago
//   y_i         Sum_j W_ij s_j                          over the complete graph the mean
//   theta_i     <- outer step to y_i                    outer.h, "nesterov"
//   x_i         <- x_i + (1 - alpha) ( theta_i - s_i )  then the next fragment is sent
//
// So a link that is P times slower than DiLoCo needs suffices, and it has H/P steps for a fragment.
// The paper has x <- alpha x + (1 - alpha) theta. It is the same for parameters that have not
// changed since. Here the local steps since, and changes by the user, stay whole. The paper's
// fragments are layers. Here they are stretches of 256 values from all layers (kernels/mask.h), so
// they have the same size.
//
// With alpha = 0, outer_lr = 1 and outer_momentum = 0 it is CTA.
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/outer.h"
#include "starling/optim/schemes/ahead.h"
#include "starling/topology/recursion.h"

namespace starling {
namespace {

class StreamingDiloco final : public AheadScheme {
 public:
  explicit StreamingDiloco(const SchemeParts& parts)
      : AheadScheme(parts, true),
        outer_(options_, true),
        alpha_(SchemeSettings(options_.scheme).number("alpha")) {}

  void attach(const Connection& connection) override {
    AheadScheme::attach(connection);
    outer_.attach(blocks_);
  }
  void restart() override {
    AheadScheme::restart();
    outer_.restart(blocks_);
  }
  void take_mean() override { AheadScheme::restart(); }
  void step() override {
    local_.all();
    for (Block& block : blocks_) merge(block);
    for (Block& block : blocks_) mix_and_send(block);
  }
  void drain() override {
    for (Block& block : blocks_) merge(block);
  }
  void state(StateVisitor& visitor) override {
    AheadScheme::state(visitor);
    outer_.state(visitor);
  }

 private:
  void merge(Block& block) {
    const at::Tensor& y = sent_.of(block);
    const at::Tensor s = y.clone();
    const Mask fragment = exchange().mask(block.index);
    sent_.mix_sent(block, finish(exchange(), block));
    outer_.step(block, y, fragment);
    y.sub_(s);
    mix(block, {{sent_.plus(block, static_cast<float>(1 - alpha_))}}, {});
  }

  Outer outer_;
  const double alpha_;
};

constexpr SchemeOption kOptions[] = {
    {"alpha", 0.5, from_below(0, 1), {}, "share of the parameters that stays when a fragment is merged"}};

void check(const Options& options, const SchemeSettings& settings, const Schedule& schedule) {
  if (options.outer != "none")
    throw UsageError(
        fmt::format("scheme \"{}\" needs outer = \"none\", not \"{}\": it has an outer optimizer "
                    "of its own, with outer_lr and outer_momentum",
                    options.scheme.name, options.outer));
  const double alpha = settings.number("alpha");
  std::vector<double> theta, m(static_cast<std::size_t>(schedule.workers()));
  const auto step = [&](const Graph& round, std::vector<double>& x) {
    if (theta.empty()) theta = x;
    const std::vector<double> y = mixed_by(round, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double delta = theta[i] - y[i];
      m[i] = options.outer_momentum * m[i] + delta;
      theta[i] -= options.outer_lr * (delta + options.outer_momentum * m[i]);
      x[i] += (1 - alpha) * (theta[i] - x[i]);
    }
  };
  if (!brings_together(schedule, step))
    throw UsageError(
        fmt::format("scheme \"{}\" with outer_lr = {}, outer_momentum = {} and alpha = {} drives "
                    "workers apart over \"{}\": take less momentum or a smaller outer_lr",
                    options.scheme.name, options.outer_lr, options.outer_momentum, alpha, schedule.name));
}

}  // namespace

extern constinit const SchemeInfo scheme_streaming_diloco{
    .name = "streaming-diloco",
    .summary =
        "Streaming DiLoCo: one fragment after the other is merged and takes an outer step, beside "
        "local steps",
    .paper = "arXiv 2501.18512",
    .traits = {.path = Path::ahead,
               .local_steps = true,
               .outer_options = 2,
               .kept = 3,
               .at_a_join = "the outer momentum begins anew, at 0"},
    .advice = {.good_for = "links a hundred times too slow: the bytes of DiLoCo, evenly over time",
               .topology = "complete",
               .evidence = {{{"torchft's beside it", "docs/results/measurements.md#peers"}, kSlowLinkStudy}}},
    .options = kOptions,
    .make = make<StreamingDiloco>,
    .check = check,
};

}  // namespace starling
