// A rule as the user wrote it, turned into what the kernels take.
#pragma once

#include <cstdint>
#include <string>

#include "starling/kernels/update.h"
#include "starling/optim/rules.h"

namespace starling {

// The rule's name as in rules.h: "AccumAdamW".
std::string rule_name(const Rule& rule);

// Throws UsageError, naming rule, key, value and what is allowed, where an option is out of range.
void check_rule(const Rule& rule);

// How many of RuleState's m, v, b the rule keeps, in this order: 0 to 3.
int rule_states(const Rule& rule);

// Step t = 1, 2, ... of one segment (parameters may be at different steps: t counts those with a gradient).
kernels::Step rule_step(const Rule& rule, std::int64_t t);

}  // namespace starling
