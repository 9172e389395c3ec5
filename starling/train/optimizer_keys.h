// The section [optimizer] of a recipe: a rule, its learning rate, and one key for each option of
// any rule.
#pragma once

#include <array>
#include <string>
#include <variant>
#include <vector>

#include "starling/core/config.h"
#include "starling/optim/rules.h"

namespace starling {

struct OptimizerKeys {
  // An option, which several rules may share. Its default is that of the first of them.
  struct Key {
    RuleOption option;
    std::string help;  // with the rules that have the option
    std::variant<double, int, bool, std::array<double, 2>, std::string> value;  // a text: of an enum
  };
  static std::vector<Key> of_all_rules();

  std::string rule = "accum-adamw";
  double lr = 1e-3;
  std::string decay = "all";
  std::vector<Key> options = of_all_rules();  // without lr
};

// Declares the section, bound to the fields of `keys`.
void declare(Config& config, OptimizerKeys& keys);
// Throws UsageError where an option lacks another one that it needs.
void check(const Config& config, const OptimizerKeys& keys);

// Takes the options that the rule has.
Rule make_rule(const OptimizerKeys& keys);
// The rule of the parameters that do not decay.
Rule without_decay(Rule rule);

}  // namespace starling
