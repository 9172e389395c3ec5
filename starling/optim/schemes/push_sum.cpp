// Stochastic gradient push: Assran et al. 2019, SGP and overlap SGP (arXiv 1811.10792). Push-sum:
// Kempe, Dobra & Gehrke 2003. Graphs may be directed, and workers may have different influence:
//
//   p_ij    the share of itself that worker j pushes to i; with its own share, columns sum to 1
//   x, w    are pushed: x_i <- Sum_j p_ij x_j,  w_i <- Sum_j p_ij w_j;  w = 1 at first
//   z       x / w: the parameters. The gradient is taken at z, and its step is added to x.
//
//   x_i <- Sum_j p_ij ( x_j - lr u(g_j(z_j)) )    staleness 0: SGP, inside step(), as ATC
//   x_i <- Sum_j p_ij x_j - lr u(g_i(z_i))        staleness 1: overlap SGP. It overlaps as CTA;
//                                                 x_j is that of the last step.
//   staleness s > 1: overlap SGP over s steps. A push is taken s steps later, with its own w, as if
//   it had been here until then; then the next one is pushed. (The paper takes it away at once, so
//   its steps are longer meanwhile.)
//
// x is never stored. In terms of z, a push mixes with weights that depend on the w. When the mass m
// = p_ij w_j arrives at z_j,
//
//   w_i <- w_i + m        z_i <- z_i + m / w_i (z_j - z_i)
//   w_j <- w_j - m        z_j does not change
//   z <- z - lr / w u     the rule's step
//
// So the kernel of all schemes does it in the same pass. The wire carries q_j, which is z_j
// rounded, and both ends use q_j. The sender's mass leaves at q_j: z_j <- z_j - m / w_j (q_j -
// z_j). So every wire keeps the sum of all w, and that of all w z, even if the parameters change
// while a push is in flight. If all w stay 1 (balanced graphs without losses), this is ATC and CTA.
//
// Lost pushes: an aborted push stays with its sender. This is another p, whose columns still sum to
// 1. A push in doubt counts as given, and comes back if it was not taken (exchange.h). So mass is
// at one place or, until then, at none. A dead worker takes its mass along. A worker to which
// nobody pushes any more would give away all it has: below kLeastWeight it keeps its mass.
//
// Each block has its own w, since its pushes commit separately. w travels behind the block's values
// (exchange/weight.h).
#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/exchange/weight.h"
#include "starling/optim/rule_step.h"
#include "starling/optim/schemes/scheme.h"
#include "starling/optim/schemes/weights.h"

namespace starling {
namespace {

// The rule whose step on z equals this rule's step on x.
Rule divided(Rule rule, double w) {
  std::visit([w](auto& o) { o.lr /= w; }, rule);
  return decay_times(std::move(rule), w);
}

class PushSum final : public Scheme {
 public:
  explicit PushSum(const SchemeParts& parts)
      : Scheme(parts), staleness_(SchemeSettings(options_.scheme).integer("staleness")) {}

  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    w_.resize(blocks_.size(), 1);
  }
  void begin() override;
  bool sends_ahead() const override { return staleness_ > 0; }
  void step() override;
  void restart() override { std::ranges::fill(w_, 1.0); }
  void state(StateVisitor& visitor) override {
    visit_weights(visitor, w_,
                  [this](std::span<const double> given) { std::ranges::copy(given, w_.begin()); });
  }
  std::vector<double> weights() const override { return w_; }

 private:
  double& w(const Block& block) { return w_[static_cast<std::size_t>(block.index)]; }
  void send_weight(const Block& block, const Outgoing& outgoing);
  bool adapt(Block& block, std::span<const Arrival> mixes, const Outgoing& outgoing,
             std::optional<float> scale);
  void adapt_and_push(Block& block, std::span<const Arrival> mixes, std::optional<float> scale);
  std::vector<Arrival> absorb(Block& block);

  const std::int64_t staleness_;
  std::int64_t steps_ = 0;  // since the last push
  std::vector<double> w_;   // by block
};

void PushSum::step() {
  const auto scale = local_.scale();
  if (staleness_ == 0) {
    for (Block& block : blocks_) adapt_and_push(block, {}, scale);
    for (Block& block : blocks_) mix(block, absorb(block), {});
  } else if (++steps_ < staleness_) {
    for (Block& block : blocks_) adapt(block, {}, {}, scale);
  } else {
    steps_ = 0;
    for (Block& block : blocks_) adapt_and_push(block, absorb(block), scale);
  }
}

bool PushSum::adapt(Block& block, std::span<const Arrival> mixes, const Outgoing& outgoing,
                    std::optional<float> scale) {
  return update(block, divided(local_.rule(block), w(block)), mixes, outgoing, scale);
}

void PushSum::adapt_and_push(Block& block, std::span<const Arrival> mixes, std::optional<float> scale) {
  const Outgoing outgoing = exchange().outgoing(block.index);
  const bool finite = adapt(block, mixes, outgoing, scale);
  send_weight(block, outgoing);
  start(exchange(), block, finite);
}

// Updates w, and returns the mixing of z.
std::vector<Arrival> PushSum::absorb(Block& block) {
  // mass, and the block that it comes from or goes to
  std::vector<std::pair<double, SentBlock>> moved;
  const auto move = [&](double share, const SentBlock& q) {
    if (share == 0) return;
    const double mass = share * weight_of(q, static_cast<std::size_t>(block.length));
    w(block) += mass;
    const auto same =
        std::ranges::find(moved, q.bytes().data(), [](const auto& m) { return m.second.bytes().data(); });
    same == moved.end() ? void(moved.emplace_back(mass, q)) : void(same->first += mass);
  };
  for (const Arrival& swap : finish(exchange(), block)) {
    move(swap.weight, swap.theirs);
    move(-swap.given, swap.mine);
  }
  std::vector<Arrival> mixes;
  for (auto& [mass, q] : moved) {
    if (mass != 0) mixes.push_back({.weight = static_cast<float>(mass / w(block)), .theirs = std::move(q)});
  }
  return mixes;
}

void PushSum::begin() {
  if (staleness_ == 0) return;
  steps_ = 0;
  for (Block& block : blocks_) {
    const Outgoing outgoing = exchange().outgoing(block.index);
    const bool finite = write_again(block, outgoing);
    send_weight(block, outgoing);
    start(exchange(), block, finite);
  }
}

void PushSum::send_weight(const Block& block, const Outgoing& outgoing) {
  if (outgoing.values == nullptr) return;
  const std::size_t values = bytes_of(outgoing.wire, static_cast<std::size_t>(block.length));
  write_weight(w(block), outgoing.wire, static_cast<std::byte*>(outgoing.values) + values);
}

// A worker must keep a share of itself: its push may be lost to it, and so may what it would
// receive.
void check_shares(const Options& options, const SchemeSettings&, const Schedule& schedule) {
  for (std::size_t r = 0; r < schedule.rounds.size(); ++r) {
    const Graph& graph = schedule.rounds[r];
    std::vector<double> given(static_cast<std::size_t>(graph.workers()));
    for (const auto& row : graph.neighbours) {
      for (const Neighbour& j : row) given[static_cast<std::size_t>(j.rank)] += j.weight;
    }
    const auto most = std::ranges::max_element(given);
    if (*most > 1 - 1e-4) {
      throw UsageError(fmt::format(
          "scheme \"{}\" needs a topology in which every worker keeps a share of itself: in round {} of "
          "\"{}\" worker {} gives all away",
          options.scheme.name, r, schedule.name, most - given.begin()));
    }
  }
}

constexpr SchemeOption kOptions[] = {{
    .name = "staleness",
    .standard = std::int64_t{0},
    .range = between(0, 1000),
    .meaning = "age, in steps, of the parameters that are mixed in; 0: SGP, which pushes and waits inside "
               "the step; s: overlap SGP, which pushes after every s-th step",
}};

Path path_of(const SchemeSettings& settings) {
  return settings.integer("staleness") == 0 ? Path::inside : Path::ahead;
}

}  // namespace

extern constinit const SchemeInfo scheme_push_sum{
    .name = "push-sum",
    .summary = "SGP: shares of the parameters and of a weight are pushed along directed edges",
    .paper = "arXiv 1811.10792",
    .traits = {.path = Path::ahead,
               .edges = EdgeKind::directed,
               .contents = {.exchanged = Exchanged::pushes, .tail = kWeightValues},
               .refused_wires = kNoModularPushes,
               .all_values = "a push is of all values of a block",
               .own_rule = "its step is divided by a worker's weight"},
    .advice = {.good_for = "directed links: a lost exchange moves nothing"},
    .options = kOptions,
    .make = make<PushSum>,
    .check = check_shares,
    .path = path_of,
};

}  // namespace starling
