// A2CiD2: asynchronous gossip with continuous momentum. Nabli, Belilovsky & Oyallon 2023 (arXiv
// 2306.08289).
// gossip/a2cid2.h has the equations of x and x~, and the paper's constants eta and alpha~.
#include "starling/gossip/a2cid2.h"

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/optim/schemes/pairs.h"

namespace starling {
namespace {

// With int4 the rounding error of a difference is a large part of it. Times alpha~, it would grow
// from averaging to averaging (VirtualGossip.MomentumIsStable...).
constexpr double kMostOnInt4 = 1;

A2cid2 momentum_of(const Options& options, const SchemeSettings& settings, const PairRates& rates) {
  const auto eta = settings.automatic("eta"), alpha_tilde = settings.automatic("alpha_tilde");
  if (options.wire != Wire::int4) return a2cid2_of(rates, eta, alpha_tilde);
  if (alpha_tilde.value_or(0) > kMostOnInt4)
    throw UsageError(
        fmt::format("alpha_tilde = {} is not allowed with wire \"int4\": at most {}, since its "
                    "rounding errors would grow without end",
                    *alpha_tilde, kMostOnInt4));
  const A2cid2 papers = at_most(a2cid2_of(rates), kMostOnInt4);
  return {.eta = eta.value_or(papers.eta), .alpha_tilde = alpha_tilde.value_or(papers.alpha_tilde)};
}

class A2cid2Scheme final : public PairScheme {
 public:
  explicit A2cid2Scheme(const SchemeParts& parts) : PairScheme(parts) {}

 private:
  void choose(GossipOptions& options, const Schedule& schedule) const override {
    PairScheme::choose(options, schedule);
    options.algorithm = pair_averaging(momentum_of(options_, settings_, options.rates));
  }
};

void check_constants(const Options& options, const SchemeSettings& settings, const Schedule& schedule) {
  momentum_of(options, settings, pair_rates(schedule, settings.number("rate")));
}

constexpr SchemeOption kOptions[] = {
    kRate,
    kClock,
    {.name = "eta",
     .standard = Automatic{"the paper's, by topology and rate"},
     .range = between(0, 1000),
     .meaning = "how fast the momentum mixes x and x~; 0: no momentum"},
    {.name = "alpha_tilde",
     .standard = Automatic{"the paper's, by topology and rate, with wire int4 at most 1"},
     .range = between(0, 1000),
     .meaning = "how far x~ goes towards the other's x"},
};

constexpr SchemeTraits traits() {
  SchemeTraits all = pair_traits();
  all.kept = 3;
  all.at_a_join = "x~ begins anew, at x";
  return all;
}

}  // namespace

extern constinit const SchemeInfo scheme_a2cid2{
    .name = "a2cid2",
    .summary = "A2CiD2: ad-psgd with continuous momentum, which speeds up mixing on sparse graphs",
    .paper = "arXiv 2306.08289",
    .traits = traits(),
    .advice = {.good_for = "workers of uneven speed on rings and grids",
               .topology = "ring",
               .evidence = {{{"a ring beside other graphs, at equal bytes", "docs/a2cid2.md#results"},
                             {"slow, stopped and dead workers",
                              "docs/results.md#slow-stopped-and-dead-workers"}}}},
    .options = kOptions,
    .make = make<A2cid2Scheme>,
    .check = check_constants,
};

}  // namespace starling
