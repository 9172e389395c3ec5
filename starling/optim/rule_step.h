// A rule as the user wrote it, turned into what kernels, files, recipes and Python take.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "starling/kernels/update.h"
#include "starling/optim/rules.h"

namespace starling {

// All rules with their default options, in the order of the list in kernels/CMakeLists.txt.
std::span<const Rule> known_rules();

std::string rule_name(const Rule& rule);      // in C++ and Python: "AccumAdamW"
std::string_view rule_key(const Rule& rule);  // in recipes: "accum-adamw"

// f(RuleOption, option) for each option, the learning rate first, in an order that files depend on.
template <class AnyRule, class F>
void each_option(AnyRule& rule, const F& f) {
  std::visit(
      [&f](auto& o) {
        f(kLearningRate, o.lr);
        RuleInfo<std::remove_cvref_t<decltype(o)>>::each_option(o, f);
      },
      rule);
}

// Throws UsageError, naming rule, key, value and what is allowed, where an option is out of range.
void check_rule(const Rule& rule);

// How many states the rule keeps with these options, 0 to 3, and the names of all that it may keep, in the
// order of RuleState.
int rule_states(const Rule& rule);
std::span<const RuleStateName> rule_state_names(const Rule& rule);

// The options as numbers, the learning rate first, and back; set_rule_values() checks them and throws as
// check_rule().
std::vector<double> rule_values(const Rule& rule);
void set_rule_values(Rule& rule, const std::vector<double>& values);

// Multiplies a decoupled weight decay (AdamW's) by w. A rule for z = x / w divides its step by w, and then
// keeps the same part of z as of x.
Rule decay_times(Rule rule, double w);

// Step t = 1, 2, ... of one segment. Parameters may be at different steps: t counts those with a gradient.
kernels::Step rule_step(const Rule& rule, std::int64_t t);

}  // namespace starling
