#include "starling/optim/rule_step.h"

#include <cmath>
#include <limits>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

#include "starling/core/error.h"

namespace starling {
namespace {

std::string_view name(const SGD&) { return "SGD"; }
std::string_view name(const Adam&) { return "Adam"; }
std::string_view name(const AdamW&) { return "AdamW"; }
std::string_view name(const AccumAdam&) { return "AccumAdam"; }
std::string_view name(const AccumAdamW&) { return "AccumAdamW"; }

[[noreturn]] void refuse_option(std::string_view rule, std::string_view key, double value,
                                std::string_view range) {
  throw UsageError(fmt::format("{}: {} = {} is not allowed: {}", rule, key, value, range));
}

void require(bool allowed, std::string_view rule, std::string_view key, double value,
             std::string_view range) {
  if (!allowed) refuse_option(rule, key, value, range);
}

template <class Options>
void check_common(const Options& o) {
  require(std::isfinite(o.lr) && o.lr >= 0, name(o), "lr", o.lr, "it must be finite and at least 0");
  require(std::isfinite(o.weight_decay) && o.weight_decay >= 0, name(o), "weight_decay", o.weight_decay,
          "it must be finite and at least 0");
}

void check(const SGD& o) {
  check_common(o);
  require(o.momentum >= 0 && o.momentum < 1, name(o), "momentum", o.momentum, "it must lie in [0, 1)");
  if (o.nesterov && o.momentum == 0) {
    throw UsageError("SGD: nesterov = true is not allowed with momentum = 0: set a momentum in (0, 1)");
  }
}

template <class Options>
void check_adam(const Options& o) {
  check_common(o);
  const auto is_rate = [](double beta) { return beta >= 0 && beta < 1; };
  require(is_rate(o.betas[0]), name(o), "betas[0]", o.betas[0], "it must lie in [0, 1)");
  require(is_rate(o.betas[1]), name(o), "betas[1]", o.betas[1], "it must lie in [0, 1)");
  require(std::isfinite(o.eps) && o.eps > 0, name(o), "eps", o.eps, "it must be finite and above 0");
}

template <class Options>
void check_accum_adam(const Options& o) {
  check_adam(o);
  require(o.window >= 1, name(o), "window", o.window, "it must be at least 1");
}

void check(const Adam& o) { check_adam(o); }
void check(const AdamW& o) { check_adam(o); }
void check(const AccumAdam& o) { check_accum_adam(o); }
void check(const AccumAdamW& o) { check_accum_adam(o); }

int states(const SGD& o) {
  return o.momentum == 0 ? kernels::SgdStep::kStates : kernels::MomentumStep::kStates;
}
int states(const Adam&) { return kernels::AdamStep::kStates; }
int states(const AdamW&) { return kernels::AdamStep::kStates; }
int states(const AccumAdam&) { return kernels::AccumAdamStep<false>::kStates; }
int states(const AccumAdamW&) { return kernels::AccumAdamStep<false>::kStates; }

kernels::Step step(const SGD& o, std::int64_t t) {
  if (o.momentum == 0) return kernels::SgdStep::at(o, t);
  return kernels::MomentumStep::at(o, t);
}
kernels::Step step(const Adam& o, std::int64_t t) { return kernels::AdamStep::at(o, false, t); }
kernels::Step step(const AdamW& o, std::int64_t t) { return kernels::AdamStep::at(o, true, t); }
kernels::Step step(const AccumAdam& o, std::int64_t t) {
  return kernels::accum_adam_step<kernels::Step>(o, false, t);
}
kernels::Step step(const AccumAdamW& o, std::int64_t t) {
  return kernels::accum_adam_step<kernels::Step>(o, true, t);
}

// f(option) for each option of the rule, in an order that files depend on.
template <class F>
void each_option(SGD& o, const F& f) {
  f(o.lr), f(o.momentum), f(o.nesterov), f(o.weight_decay);
}
template <class Options, class F>
void each_option(Options& o, const F& f) {
  f(o.lr), f(o.betas[0]), f(o.betas[1]), f(o.eps), f(o.weight_decay);
  if constexpr (requires { o.window; }) f(o.window);
}

}  // namespace

std::string rule_name(const Rule& rule) {
  return std::visit([](const auto& o) { return std::string(name(o)); }, rule);
}

void check_rule(const Rule& rule) {
  std::visit([](const auto& o) { check(o); }, rule);
}

int rule_states(const Rule& rule) {
  return std::visit([](const auto& o) { return states(o); }, rule);
}

std::vector<double> rule_values(const Rule& rule) {
  std::vector<double> values;
  Rule copy = rule;
  std::visit(
      [&](auto& o) { each_option(o, [&](auto& option) { values.push_back(static_cast<double>(option)); }); },
      copy);
  return values;
}

void set_rule_values(Rule& rule, const std::vector<double>& values) {
  Rule changed = rule;
  std::size_t wanted = 0, k = 0;
  std::visit([&](auto& o) { each_option(o, [&](auto&) { ++wanted; }); }, changed);
  if (values.size() != wanted) {
    throw UsageError(fmt::format("{} has {} options, not {}", rule_name(rule), wanted, values.size()));
  }
  const auto set = [&](auto& option) {
    using Option = std::remove_reference_t<decltype(option)>;
    const double value = values[k++];
    // Of a file: a number that the type cannot hold must not reach the conversion.
    const bool fits =
        std::is_same_v<Option, double> || (value >= 0 && value <= std::numeric_limits<int>::max());
    if (!fits)
      refuse_option(rule_name(rule), fmt::format("option {}", k), value, "it must be a whole number");
    option = static_cast<Option>(value);
  };
  std::visit([&](auto& o) { each_option(o, set); }, changed);
  check_rule(changed);
  rule = changed;
}

Rule decay_times(Rule rule, double w) {
  if (auto* const adamw = std::get_if<AdamW>(&rule)) adamw->weight_decay *= w;
  if (auto* const adamw = std::get_if<AccumAdamW>(&rule)) adamw->weight_decay *= w;
  return rule;
}

kernels::Step rule_step(const Rule& rule, std::int64_t t) {
  return std::visit([t](const auto& o) { return step(o, t); }, rule);
}

}  // namespace starling
