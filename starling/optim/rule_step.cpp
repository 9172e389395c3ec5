#include "starling/optim/rule_step.h"

#include <array>
#include <limits>
#include <stdexcept>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/whole.h"

namespace starling {
namespace {

// Calls f.operator()<Info>(options). Info is the RuleInfo of the rule in the variant.
template <class AnyRule, class F>
auto with_info(AnyRule& rule, const F& f) {
  return std::visit(
      [&f](auto& o) { return f.template operator()<RuleInfo<std::remove_cvref_t<decltype(o)>>>(o); }, rule);
}

template <class... Rules>
std::array<Rule, sizeof...(Rules)> defaults_of(const std::variant<Rules...>&) {
  return {Rules{}...};
}

// Calls f(number) for each number of an option.
template <class Option, class F>
void each_number(Option& option, const F& f) {
  if constexpr (requires { option.size(); }) {
    for (auto& number : option) f(number);
  } else {
    f(option);
  }
}

[[noreturn]] void refuse_value(const Rule& rule, std::string_view key, double value, std::string_view range) {
  throw UsageError(
      fmt::format("{}: {} = {} is not allowed: it must be {}", rule_name(rule), key, value, range));
}

template <class Option>
void check_range(const Rule& rule, const RuleOption& about, const Option& option) {
  std::size_t k = 0;
  each_number(option, [&](double number) {
    const std::size_t place = k++;
    if (about.range.holds(number)) return;
    constexpr bool kSeveral = requires { option.size(); };
    const bool bounded = about.range.most != Range{}.most;
    refuse_value(rule, kSeveral ? fmt::format("{}[{}]", about.name, place) : std::string(about.name), number,
                 (bounded ? "" : "finite and ") + about.range.text());
  });
}

// Whether the option is 0 or false.
template <class Option>
bool is_zero(const Option& option) {
  return option == Option{};
}

void check_needed(const Rule& rule, const RuleOption& about) {
  each_option(rule, [&](const RuleOption& other, const auto& option) {
    if (other.name != about.needs || !is_zero(option)) return;
    throw UsageError(fmt::format("{}: {} = true is not allowed with {} = 0: it must be above 0",
                                 rule_name(rule), about.name, other.name));
  });
}

}  // namespace

std::span<const Rule> known_rules() {
  static const auto all = defaults_of(Rule());
  return all;
}

std::string rule_name(const Rule& rule) {
  return with_info(rule, []<class Info>(const auto&) { return std::string(Info::kName); });
}

std::string_view rule_key(const Rule& rule) {
  return with_info(rule, []<class Info>(const auto&) { return Info::kKey; });
}

void check_rule(const Rule& rule) {
  each_option(rule, [&](const RuleOption& about, const auto& option) { check_range(rule, about, option); });
  each_option(rule, [&](const RuleOption& about, const auto& option) {
    if (!about.needs.empty() && !is_zero(option)) check_needed(rule, about);
  });
}

int rule_states(const Rule& rule) {
  return std::visit([](const auto& step) { return step.kStates; }, rule_step(rule, 1));
}

std::span<const RuleStateName> rule_state_names(const Rule& rule) {
  return with_info(rule,
                   []<class Info>(const auto&) { return std::span<const RuleStateName>(Info::kStates); });
}

std::vector<double> rule_values(const Rule& rule) {
  std::vector<double> values;
  each_option(rule, [&](const RuleOption&, const auto& option) {
    each_number(option, [&](auto number) { values.push_back(static_cast<double>(number)); });
  });
  return values;
}

void set_rule_values(Rule& rule, const std::vector<double>& values) {
  Rule changed = rule;
  std::size_t wanted = 0, k = 0;
  each_option(changed,
              [&](const RuleOption&, auto& option) { each_number(option, [&](auto&) { ++wanted; }); });
  if (values.size() != wanted)
    throw UsageError(fmt::format("{} has {} options, not {}", rule_name(rule), wanted, values.size()));
  const auto set = [&](auto& number) {
    using Number = std::remove_reference_t<decltype(number)>;
    const double value = values[k++];
    // Files and Python may give any number. One that the type cannot hold must not be converted.
    const bool fits =
        std::is_same_v<Number, double> || is_whole_number(value, 0, std::numeric_limits<int>::max());
    if (!fits) refuse_value(rule, fmt::format("option {}", k), value, "a whole number");
    number = static_cast<Number>(value);
  };
  each_option(changed, [&](const RuleOption&, auto& option) { each_number(option, set); });
  check_rule(changed);
  rule = changed;
}

Rule decay_times(Rule rule, double w) {
  with_info(rule, [w]<class Info>(auto& o) {
    if constexpr (Info::kDecoupled) o.weight_decay *= w;
  });
  return rule;
}

kernels::Step rule_step(const Rule& rule, std::int64_t t) {
  return with_info(rule, [t]<class Info>(const auto& o) { return Info::template step<kernels::Step>(o, t); });
}

bool takes_whole(const Rule& rule, const at::Tensor& parameter) {
  return with_info(rule, [&]<class Info>(const auto& o) {
    if constexpr (requires { Info::takes_whole(o, 0); })
      return Info::takes_whole(o, parameter.dim());
    else
      return false;
  });
}

kernels::Step matrix_step(const Rule& rule, const at::Tensor& parameter) {
  return with_info(rule, [&]<class Info>(const auto& o) -> kernels::Step {
    if constexpr (requires { Info::takes_whole(o, 0); })
      return Info::template matrix_step<kernels::Step>(o, parameter.size(0),
                                                       parameter.numel() / parameter.size(0));
    else
      throw std::logic_error("a rule without matrices");
  });
}

}  // namespace starling
