// Converts a rule, as the user wrote it, to the forms of kernels, files, recipes and Python.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/kernels/update.h"
#include "starling/optim/rules.h"

namespace torch::optim {
class OptimizerParamGroup;
}

namespace starling {

// All rules with their default options, in the order of the list in kernels/CMakeLists.txt.
std::span<const Rule> known_rules();

std::string rule_name(const Rule& rule);      // in C++ and Python: "AccumAdamW"
std::string_view rule_key(const Rule& rule);  // in recipes: "accum-adamw"

// Calls f(RuleOption, option) for each option, the learning rate first. Files depend on the order.
template <class AnyRule, class F>
void each_option(AnyRule& rule, const F& f) {
  std::visit(
      [&f](auto& o) {
        f(kLearningRate, o.lr);
        RuleInfo<std::remove_cvref_t<decltype(o)>>::each_option(o, f);
      },
      rule);
}

// Throws UsageError if an option is out of range. The message has the rule, key, value and allowed
// values.
void check_rule(const Rule& rule);

// rule_states(): how many states the rule keeps with these options, 0 to 3. rule_state_names(): all
// states that it may keep, in the order of RuleState.
int rule_states(const Rule& rule);
std::span<const RuleStateName> rule_state_names(const Rule& rule);

// The options as numbers, the learning rate first, and back. set_rule_values() checks them and
// throws as check_rule().
std::vector<double> rule_values(const Rule& rule);
void set_rule_values(Rule& rule, const std::vector<double>& values);

// Multiplies a decoupled weight decay (AdamW's) by w. A rule for z = x / w divides its step by w;
// with this it keeps the same part of z as of x.
Rule decay_times(Rule rule, double w);

// Step t = 1, 2, ... of one segment. t counts the steps with a gradient, so it may differ between
// parameters.
kernels::Step rule_step(const Rule& rule, std::int64_t t);

// Whether the rule, or the group's rule if it has one of Starling's, updates this parameter as one
// matrix (direction.h). Such a parameter keeps the first of the rule's states only.
bool takes_whole(const Rule& rule, const at::Tensor& parameter);
bool takes_whole(const torch::optim::OptimizerParamGroup& group, const at::Tensor& parameter);
// A step of it.
kernels::Step matrix_step(const Rule& rule, const at::Tensor& parameter);

}  // namespace starling
