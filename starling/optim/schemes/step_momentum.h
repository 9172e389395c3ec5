// Schemes with a momentum m of the whole step, from a worker's x before it to its x after mixing
// (quasi_global.cpp, decentlam.cpp). They divide that difference by the learning rate. Options that
// other schemes with momentum share.
#pragma once

#include <string_view>

#include "starling/optim/schemes/vectors.h"

namespace starling {

class StepMomentum : public Scheme {
 public:
  void attach(const Connection& connection) override {
    Scheme::attach(connection);
    m_.attach(blocks_), before_.attach(blocks_);
  }
  void restart() override { m_.zero(); }
  void take_mean() override {}
  void state(StateVisitor& visitor) override { m_.state(visitor, "momentum"); }

 protected:
  explicit StepMomentum(const SchemeParts& parts)
      : Scheme(parts), beta_(SchemeSettings(options_.scheme).number("beta")) {}

  double lr(const Block& block) const { return local_.lr(block); }
  // To be mixed into the parameters: x <- x - lr beta m.
  Arrival push(const Block& block) const { return m_.plus(block, static_cast<float>(-lr(block) * beta_)); }

  const double beta_;
  Vectors m_, before_;
};

inline constexpr SchemeOption kBeta{
    .name = "beta",
    .standard = 0.9,
    .range = from_below(0, 1),
    .meaning = "the scheme's own momentum: a step goes by beta m + the gradient; 0: none",
};
// The shares of Adam's moments.
inline constexpr SchemeOption kBeta1{
    .name = "beta1",
    .standard = 0.9,
    .range = from_below(0, 1),
    .meaning = "share of the scheme's momentum that a step keeps; 0: none",
};
inline constexpr SchemeOption kBeta2{
    .name = "beta2",
    .standard = 0.99,
    .range = between(0, 1),
    .meaning = "share of the second moment that a step keeps; 1: it stays 0, so the floor, or eps, counts",
};
inline constexpr std::string_view kMomentumOfAllValues =
    "its momentum is of values that are mixed in every step";
inline constexpr std::string_view kMomentumAtAJoin = "its momentum begins anew, at 0";
inline constexpr std::string_view kDividesByLr = "its momentum is divided by the rule's learning rate";

}  // namespace starling
