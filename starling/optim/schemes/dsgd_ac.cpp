// DSGD with adaptive consensus: Wang & Johansson 2026, DSGD-AC (arXiv 2602.02899).
//
//   x_i(t+1) = x_i(t) + c_t Sum_j W_ij ( x_j(t) - x_i(t) ) - lr_t u(g_i(x_i(t)))
//   c_t      = ( lr_t / largest lr so far )^power
//
// As the learning rate falls, workers mix less, so their disagreement does not fall with it: it
// keeps them in flat minima. With power 0 it is CTA. The step is that of Decent-DP 0.2.3 with its
// adaptive factor (ddp.py, set_adaptive_factor()), which its user sets; how c_t follows the
// learning rate is not verified against the paper's text.
//
// Both ends of an exchange use the c_t of its round, so the sum of all parameters stays, also where
// an exchange ends late. A worker that joins the run takes the others' largest learning rate.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <vector>

#include "starling/optim/schemes/ahead.h"

namespace starling {
namespace {

class DsgdAc final : public AheadScheme {
 public:
  explicit DsgdAc(const SchemeParts& parts)
      : AheadScheme(parts), power_(SchemeSettings(options_.scheme).number("power")) {}

  void attach(const Connection& connection) override {
    AheadScheme::attach(connection);
    renewed_ = connection.renewed;
    for (const Block& block : blocks_)
      groups_.resize(std::max(groups_.size(), static_cast<std::size_t>(block.group) + 1));
    for (Group& group : groups_) group.factors.clear();  // a new connection counts its rounds anew
  }

  // Collective, if there may be a newcomer.
  void begin() override {
    if (renewed_) agree_on_largest_lr();
    AheadScheme::begin();
  }

  void step() override {
    const auto scale = local_.scale();
    for (const Block& block : blocks_) set_factor(block);  // before a block begins the next round
    for (Block& block : blocks_) update_and_send(block, damped(block), scale);
  }

  void drain() override {
    for (Block& block : blocks_) {
      set_factor(block);
      mix(block, damped(block), {});
    }
  }

  void state(StateVisitor& visitor) override {
    AheadScheme::state(visitor);
    std::vector<double> largest;
    for (const Group& group : groups_) largest.push_back(group.largest_lr);
    visitor.numbers("largest_lr", {.fresh = std::vector<double>(groups_.size()),
                                   .now = largest,
                                   .set =
                                       [this](std::span<const double> given) {
                                         for (std::size_t g = 0; g < groups_.size(); ++g)
                                           groups_[g].largest_lr = given[g];
                                       },
                                   .refusal = [](std::span<const double> given) -> std::string {
                                     const bool good = std::ranges::all_of(
                                         given, [](double lr) { return lr >= 0 && std::isfinite(lr); });
                                     return good ? "" : "a learning rate is below 0 or not finite";
                                   }});
  }

 private:
  struct Group {
    double largest_lr = 0;
    std::map<std::uint64_t, double> factors{};  // c by round, of the last ones
  };
  static constexpr std::size_t kRounds = 64;

  Group& group(const Block& block) { return groups_[static_cast<std::size_t>(block.group)]; }
  void set_factor(const Block& block) {
    auto& [largest_lr, factors] = group(block);
    const double lr = local_.lr(block);
    largest_lr = std::max(largest_lr, lr);
    factors.try_emplace(exchange().round(), largest_lr > 0 ? std::pow(lr / largest_lr, power_) : 1);
    if (factors.size() > kRounds) factors.erase(factors.begin());
  }
  // The bits of doubles from 0 on have their order.
  void agree_on_largest_lr() {
    std::vector<std::int64_t> largest;
    for (const Group& group : groups_) largest.push_back(std::bit_cast<std::int64_t>(group.largest_lr));
    exchange().maximum(largest);
    for (std::size_t g = 0; g < groups_.size(); ++g)
      groups_[g].largest_lr = std::bit_cast<double>(largest[g]);
  }
  // The block's arrivals, with weights times c.
  std::vector<Arrival> damped(const Block& block) {
    const auto finished = finish(exchange(), block);
    std::vector<Arrival> arrivals(finished.begin(), finished.end());
    const auto& factors = group(block).factors;
    for (Arrival& arrival : arrivals) {
      const auto then = factors.find(arrival.round);
      arrival.weight *= static_cast<float>((then == factors.end() ? *factors.rbegin() : *then).second);
    }
    return arrivals;
  }

  const double power_;
  bool renewed_ = false;  // the connection is
  std::vector<Group> groups_;
};

constexpr SchemeOption kOptions[] = {
    {.name = "power",
     .standard = 1.0,
     .range = between(0, 10),
     .meaning = "how fast mixing falls with the learning rate: c = (lr / largest lr)^power; 0: not at all"}};

}  // namespace

extern constinit const SchemeInfo scheme_dsgd_ac{
    .name = "dsgd-ac",
    .summary = "cta that mixes less as the learning rate falls, so that workers keep some disagreement",
    .paper = "arXiv 2602.02899",
    .traits = {.path = Path::ahead,
               .own_rule = "its mixing follows the rule's learning rate",
               .local_steps = true,
               .agrees = Agrees::as_topology,
               .kept_if_local = 1,
               .at_a_join = "the largest learning rate so far is that of any worker"},
    .advice = {.good_for = "flat minima: workers keep some disagreement as the learning rate falls",
               .evidence = {{{"accuracy beside cta", "recipes/studies/ablation.toml"}}}},
    .options = kOptions,
    .make = make<DsgdAc>,
};

}  // namespace starling
