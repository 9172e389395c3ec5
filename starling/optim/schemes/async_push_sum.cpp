// Asynchronous gradient push: Assran & Rabbat 2021 (arXiv 1803.08950). It is push-sum
// (push_sum.cpp) in pairs, on directed graphs. At random times a worker pushes half of its x and w
// to one out-neighbour. gossip/pair_push.cpp has the equations.
#include "starling/optim/schemes/pairs.h"
#include "starling/optim/schemes/weights.h"

namespace starling {
namespace {

class AsyncPushSum final : public PairScheme {
 public:
  explicit AsyncPushSum(const SchemeParts& parts) : PairScheme(parts) {}

  void step() override {
    resume();
    renew();  // other changes of the parameters are not divided by w
    adapt();
    give();
  }

 private:
  void choose(GossipOptions& options, const Schedule& schedule) const override {
    options.rates = push_rates(schedule, settings_.number("rate"));
    options.algorithm = pair_push();
  }
};

constexpr SchemeTraits traits() {
  SchemeTraits all = pair_traits(EdgeKind::directed);
  all.at_a_join = "the weights begin anew, at 1";
  all.refused_wires = kNoModularPushes;
  return all;
}

}  // namespace

extern constinit const SchemeInfo scheme_async_push_sum{
    .name = "async-push-sum",
    .summary = "push-sum beside training: a worker pushes half of what it has, and waits for nobody",
    .paper = "arXiv 1803.08950",
    .traits = traits(),
    .advice = {.good_for = "workers of uneven speed on directed links"},
    .options = kPairOptions,
    .make = make<AsyncPushSum>,
    .check = check_pushes,
};

}  // namespace starling
