// AD-PSGD on bipartite graphs, as in its paper (arXiv 1710.06952). Workers of one side send
// requests, workers of the other side only answer, so fewer requests are refused. gossip/ad_psgd.h
// has the rates.
#include "starling/gossip/ad_psgd.h"
#include "starling/optim/schemes/pairs.h"

namespace starling {
namespace {

PairRates rates_of(const SchemeSettings& settings, const Schedule& schedule) {
  return bipartite(pair_rates(schedule, settings.number("rate")));
}

class AdPsgdBipartite final : public PairScheme {
 public:
  explicit AdPsgdBipartite(const SchemeParts& parts) : PairScheme(parts) {}

 private:
  void choose(GossipOptions& options, const Schedule& schedule) const override {
    options.rates = rates_of(settings_, schedule);
  }
};

void check_sides(const Options&, const SchemeSettings& settings, const Schedule& schedule) {
  rates_of(settings, schedule);
}

}  // namespace

extern constinit const SchemeInfo scheme_ad_psgd_bipartite{
    .name = "ad-psgd-bipartite",
    .summary = "ad-psgd on a graph of two sides: one side asks, the other answers",
    .paper = "arXiv 1710.06952",
    .traits = pair_traits(),
    .advice = {.good_for = "workers of uneven speed on a graph of two sides", .topology = "ring"},
    .options = kPairOptions,
    .make = make<AdPsgdBipartite>,
    .check = check_sides,
};

}  // namespace starling
