// A rule as the user wrote it, turned into what the kernels take.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "starling/kernels/update.h"
#include "starling/optim/rules.h"

namespace starling {

// The rule's name as in rules.h: "AccumAdamW".
std::string rule_name(const Rule& rule);

// Throws UsageError, naming rule, key, value and what is allowed, where an option is out of range.
void check_rule(const Rule& rule);

// How many of RuleState's m, v, b the rule keeps, in this order: 0 to 3.
int rule_states(const Rule& rule);

// The rule's options as numbers, the learning rate first, and back; set_rule_values() checks them and throws as
// check_rule().
std::vector<double> rule_values(const Rule& rule);
void set_rule_values(Rule& rule, const std::vector<double>& values);

// With AdamW's and AccumAdamW's weight decay times w: of a rule for z = x / w, whose step is divided by w, what it keeps of z is
// what it keeps of x.
Rule decay_times(Rule rule, double w);

// Step t = 1, 2, ... of one segment (parameters may be at different steps: t counts those with a gradient).
kernels::Step rule_step(const Rule& rule, std::int64_t t);

}  // namespace starling
