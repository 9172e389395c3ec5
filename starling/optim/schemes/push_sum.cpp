// Stochastic gradient push: Assran et al. 2019, SGP and overlap SGP (arXiv 1811.10792).
//
//   x, w, z   as in pushes.h: z = x / w are the parameters. The gradient is taken at z, and its
//             step is added to x.
//
//   x_i <- Sum_j p_ij ( x_j - lr u(g_j(z_j)) )    staleness 0: SGP, inside step(), as ATC
//   x_i <- Sum_j p_ij x_j - lr u(g_i(z_i))        staleness 1: overlap SGP. It overlaps as CTA;
//                                                 x_j is that of the last step.
//   staleness s > 1: overlap SGP over s steps. A push is taken s steps later, with its own w, as if
//   it had been here until then; then the next one is pushed. (The paper takes it away at once, so
//   its steps are longer meanwhile.) z is kept as it was pushed, since it changes meanwhile: a
//   resumed run pushes it again.
//
// In terms of z, the rule's step is z <- z - lr / w u. If all w stay 1 (balanced graphs without
// losses), this is ATC and CTA.
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>

#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/count.h"
#include "starling/optim/schemes/pushes.h"
#include "starling/optim/schemes/vectors.h"

namespace starling {
namespace {

// The rule whose step on z equals this rule's step on x.
Rule divided(Rule rule, double w) {
  std::visit([w](auto& o) { o.lr /= w; }, rule);
  return decay_times(std::move(rule), w);
}

class PushSum final : public PushScheme {
 public:
  explicit PushSum(const SchemeParts& parts)
      : PushScheme(parts), staleness_(SchemeSettings(options_.scheme).integer("staleness")) {}

  void attach(const Connection& connection) override {
    PushScheme::attach(connection);
    if (keeps_sent()) sent_.attach(blocks_);
  }
  void begin() override;
  bool sends_ahead() const override { return staleness_ > 0; }
  void restart() override {
    PushScheme::restart();
    steps_ = 0;
    if (!keeps_sent()) return;
    for (Block& block : blocks_) sent_.copy(block);
  }
  void drain() override {
    if (staleness_ == 0) return;
    for (Block& block : blocks_) mix(block, absorb(block), {});
  }
  void step() override;
  void state(StateVisitor& visitor) override;

 private:
  // Whether steps change z while a push is in flight.
  bool keeps_sent() const { return staleness_ > 1; }
  Rule rule(const Block& block) const { return divided(local_.rule(block), w(block)); }
  void adapt_and_push(Block& block, std::span<const Arrival> mixes, std::optional<float> scale) {
    const Outgoing outgoing = exchange().outgoing(block.index);
    update(block, rule(block), mixes, outgoing, scale, sender(block, outgoing));
  }

  const std::int64_t staleness_;
  std::int64_t steps_ = 0;          // since the last push
  Vectors sent_{Fresh::parameter};  // if kept: z as it was pushed last
};

void PushSum::step() {
  const auto scale = local_.scale();
  if (staleness_ == 0) {
    for (Block& block : blocks_) adapt_and_push(block, {}, scale);
    for (Block& block : blocks_) mix(block, absorb(block), {});
  } else if (++steps_ < staleness_) {
    for (Block& block : blocks_) update(block, rule(block), {}, {}, scale);
  } else {
    steps_ = 0;
    for (Block& block : blocks_) {
      adapt_and_push(block, absorb(block), scale);
      if (keeps_sent()) sent_.copy(block);
    }
  }
}

void PushSum::begin() {
  if (staleness_ == 0) return;
  for (Block& block : blocks_) {
    const Outgoing outgoing = exchange().outgoing(block.index);
    push(block, outgoing, keeps_sent() ? sent_.write_again(block, outgoing) : write_again(block, outgoing));
  }
}

void PushSum::state(StateVisitor& visitor) {
  PushScheme::state(visitor);
  if (!keeps_sent()) return;
  sent_.state(visitor, "sent");
  visit_count(visitor, "since_push", steps_, static_cast<double>(staleness_ - 1));
}

constexpr SchemeOption kOptions[] = {{
    .name = "staleness",
    .standard = std::int64_t{0},
    .range = between(0, 1000),
    .meaning = "age, in steps, of the parameters that are mixed in; 0: SGP, which pushes and waits inside "
               "the step; s: overlap SGP, which pushes after every s-th step",
}};

constexpr SchemeTraits traits() {
  SchemeTraits all = push_traits();
  all.own_rule = "its step is divided by a worker's weight";
  return all;
}

Path path_of(const SchemeSettings& settings) {
  return settings.integer("staleness") == 0 ? Path::inside : Path::ahead;
}

int steps_of(const SchemeSettings& settings) {
  return static_cast<int>(std::max<std::int64_t>(1, settings.integer("staleness")));
}

}  // namespace

extern constinit const SchemeInfo scheme_push_sum{
    .name = "push-sum",
    .summary = "SGP: shares of the parameters and of a weight are pushed along directed edges",
    .paper = "arXiv 1811.10792",
    .traits = traits(),
    .advice = {.good_for = "directed links: a lost exchange moves nothing"},
    .options = kOptions,
    .make = make<PushSum>,
    .check = check_shares,
    .path = path_of,
    .steps = steps_of,
};

}  // namespace starling
