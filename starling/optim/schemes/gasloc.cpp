// GASLoC: Cagnasso, Belilovsky & Oyallon 2026 (arXiv 2606.11081).
//
//   y_i(t)       = theta_i(t) + eta ( x_i - theta_i(t) )    x_i: after H local steps from theta_i
//   theta_i(t+1) = Sum_j W_ij y_j(t) + gamma ( y_i(t) - y_i(t-1) ),    y_i(-1) = theta_i(0)
//
// H is Options::every, eta outer_lr, gamma outer_momentum. The momentum of y speeds up mixing too:
// a graph needs the square root of the rounds. Over the complete graph, the mean of all workers
// moves as that of DiLoCo (outer.h, "nesterov"). With eta 1 and gamma 0 it is ATC after H local
// steps.
#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/vectors.h"
#include "starling/topology/recursion.h"

namespace starling {
namespace {

class Gasloc final : public Scheme {
 public:
  explicit Gasloc(const SchemeParts& parts) : Scheme(parts) {}

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    theta_.attach(blocks_);
    y_.attach(blocks_);
  }
  void restart() override {
    for (Block& block : blocks_) theta_.copy(block), y_.copy(block);
  }
  // The momentum stays: y moves along.
  void take_mean() override {
    for (Block& block : blocks_) {
      y_.of(block).sub_(theta_.of(block));
      theta_.copy(block);
      y_.of(block).add_(theta_.of(block));
    }
  }

  void step() override {
    local_.all();
    for (Block& block : blocks_) {
      theta_.less_parameters(block);
      mix(block, {{theta_.plus(block, static_cast<float>(1 - options_.outer_lr))}}, {});  // x <- y
      theta_.copy(block);
      y_.less_parameters(block);
      mix_and_send(exchange(), block, {});
    }
    for (Block& block : blocks_) {
      mix(block, finish(exchange(), block), {});
      mix(block, {{y_.plus(block, static_cast<float>(-options_.outer_momentum))}}, {});
    }
    std::swap(y_, theta_);
    for (Block& block : blocks_) theta_.copy(block);
  }

  void state(StateVisitor& visitor) override {
    theta_.state(visitor, "theta");
    y_.state(visitor, "y");
  }

 private:
  Vectors theta_{Fresh::parameter}, y_{Fresh::parameter};
};

constexpr RefusedWire kTooCoarse[] = {{Wire::int4, "the momentum adds up what its rounding leaves"}};

bool is_stable(const Schedule& schedule, double gamma) {
  std::vector<double> before;
  return brings_together(schedule, [&](const Graph& round, std::vector<double>& theta) {
    if (before.empty()) before = theta;
    std::vector<double> next = mixed_by(round, theta);
    for (std::size_t i = 0; i < next.size(); ++i) next[i] += gamma * (theta[i] - before[i]);
    before = std::exchange(theta, std::move(next));
  });
}

void check_momentum(const Options& options, const SchemeSettings&, const Schedule& schedule) {
  if (is_stable(schedule, options.outer_momentum)) return;
  double most = 0.9;
  while (most > 0 && !is_stable(schedule, most)) most -= 0.1;
  throw UsageError(fmt::format(
      "scheme \"gasloc\" with outer_momentum = {} drives workers apart over \"{}\": {:.1f} does not, and a "
      "topology of one round, such as ring, takes more",
      options.outer_momentum, schedule.name, std::max(most, 0.0)));
}

}  // namespace

extern constinit const SchemeInfo scheme_gasloc{
    .name = "gasloc",
    .summary = "GASLoC: atc with an outer momentum that also speeds up mixing, after local steps",
    .paper = "arXiv 2606.11081",
    .traits = {.path = Path::inside,
               .refused_wires = kTooCoarse,
               .all_values = "its momentum is of values that are mixed in every exchange",
               .local_steps = true,
               .outer_options = 2,
               .kept = 2,
               .at_a_join = "its momentum begins anew, at 0"},
    .advice = {.good_for = "links a hundred times too slow, without a mean of all workers",
               .evidence = {{kSlowLinkStudy}}},
    .make = make<Gasloc>,
    .check = check_momentum,
};

}  // namespace starling
