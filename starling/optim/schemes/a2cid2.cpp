// A2CiD2: asynchronous gossip with continuous momentum. Nabli, Belilovsky & Oyallon 2023 (arXiv
// 2306.08289).
// gossip/a2cid2.h has the equations of x and x~, and the paper's constants eta and alpha~.
#include "starling/gossip/a2cid2.h"

#include "starling/optim/schemes/pairs.h"

namespace starling {
namespace {

A2cid2 momentum_of(const SchemeSettings& settings, const PairRates& rates) {
  return a2cid2_of(rates, settings.automatic("eta"), settings.automatic("alpha_tilde"));
}

class A2cid2Scheme final : public PairScheme {
 public:
  explicit A2cid2Scheme(const SchemeParts& parts) : PairScheme(parts) {}

 private:
  void choose(GossipOptions& options, const Schedule& schedule) const override {
    PairScheme::choose(options, schedule);
    options.momentum = momentum_of(settings_, options.rates);
  }
};

void check_constants(const SchemeInfo&, const SchemeSettings& settings, const Schedule& schedule) {
  momentum_of(settings, pair_rates(schedule, settings.number("rate")));
}

constexpr SchemeOption kOptions[] = {
    kRate,
    kClock,
    {.name = "eta",
     .standard = Automatic{},
     .range = between(0, 1000),
     .meaning = "how fast the momentum mixes x and x~; 0: no momentum; automatic: the paper's, by topology "
                "and rate"},
    {.name = "alpha_tilde",
     .standard = Automatic{},
     .range = between(0, 1000),
     .meaning = "how far x~ goes towards the other's x; automatic: the paper's, by topology and rate"},
};

}  // namespace

extern constinit const SchemeInfo scheme_a2cid2{
    .name = "a2cid2",
    .summary = "A2CiD2: ad-psgd with continuous momentum, which speeds up mixing on sparse graphs",
    .paper = "arXiv 2306.08289",
    .traits = pair_traits(),
    .options = kOptions,
    .make = make<A2cid2Scheme>,
    .check = check_constants,
};

}  // namespace starling
