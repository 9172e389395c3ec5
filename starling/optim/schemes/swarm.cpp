// SwarmSGD: Nadiradze, Sabour, Davies, Li & Alistarh 2021 (arXiv 1910.12308), in its non-blocking
// form.
//
//   H local steps         p_i <- p_i - lr g(p_i), beginning at p_i = x_i
//   after the last one    x_i <- x_i + (p_i - x_i before the first),  p_i <- x_i
//   averaging of i,j      x_i, x_j <- (x_i + x_j) / 2
//
// Other workers average with x. A worker that meets i during i's local steps gets x_i without them.
// They are added after the last one, to the x_i of that moment. The clock counts stretches of H
// steps. With rate 1, a worker averages once per stretch in the mean, after a random number of
// stretches, as in the paper. The paper's quantised averaging sends a code of x modulo the range,
// which the receiver decodes near its own x. The wires int8 and int4 do the same
// (kernels/modular.h). With H = 1 this is AD-PSGD.
#include "starling/optim/schemes/pairs.h"

namespace starling {
namespace {

class Swarm final : public PairScheme {
 public:
  explicit Swarm(const SchemeParts& parts)
      : PairScheme(parts), local_steps_(settings_.integer("local_steps")) {}

  void attach(const Connection& connection) override {
    PairScheme::attach(connection);
    made_ = 0;
  }

  void step() override {
    resume();
    adapt();
    if (++made_ < local_steps_) return;
    made_ = 0;
    give();
  }

  // Gossip counts stretches.
  std::optional<GossipStatistics> gossip() const override {
    auto all = PairScheme::gossip();
    if (all) all->gradients_of_all *= static_cast<std::uint64_t>(local_steps_);
    return all;
  }

 private:
  const std::int64_t local_steps_;  // H
  std::int64_t made_ = 0;           // of them, in this stretch
};

constexpr SchemeOption kOptions[] = {kRate,
                                     kClock,
                                     {.name = "local_steps",
                                      .standard = std::int64_t{1},
                                      .range = between(1, 1 << 20),
                                      .meaning = "H, steps of a worker between two that others can see"}};

}  // namespace

extern constinit const SchemeInfo scheme_swarm{
    .name = "swarm",
    .summary = "SwarmSGD: ad-psgd after some local steps",
    .paper = "arXiv 1910.12308",
    .traits = pair_traits(),
    .advice = {.good_for = "workers of uneven speed, and local steps between averagings",
               .topology = "static-exponential"},
    .options = kOptions,
    .make = make<Swarm>,
    .check = check_pairs,
};

}  // namespace starling
