#include "starling/train/optimizer_keys.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/optim/rule_step.h"

namespace starling {
namespace {

// The option's name in recipes.
std::string_view name_of(const RuleOption& option) { return option.key.empty() ? option.name : option.key; }

// The key of the option, or null.
auto* key_of(auto& keys, std::string_view name) {
  const auto found =
      std::ranges::find(keys, name, [](const OptimizerKeys::Key& key) { return name_of(key.option); });
  return found == keys.end() ? nullptr : &*found;
}

// "decay rates of the moments (adam, adamw)": what the option means, and with which rules.
std::string help_of(std::string_view name) {
  std::vector<std::pair<std::string_view, std::vector<std::string_view>>> meanings;
  for (const Rule& rule : known_rules()) {
    each_option(rule, [&](const RuleOption& option, const auto&) {
      if (name_of(option) != name) return;
      auto meaning = std::ranges::find(meanings, option.help, [](const auto& one) { return one.first; });
      if (meaning == meanings.end()) meaning = meanings.insert(meaning, {option.help, {}});
      meaning->second.push_back(rule_key(rule));
    });
  }
  std::vector<std::string> texts;
  for (const auto& [help, rules] : meanings)
    texts.push_back(fmt::format("{} ({})", help, fmt::join(rules, ", ")));
  return fmt::format("{}", fmt::join(texts, "; "));
}

bool is_zero(const OptimizerKeys::Key& key) {
  return std::visit([]<class Value>(const Value& value) { return value == Value{}; }, key.value);
}

}  // namespace

std::vector<OptimizerKeys::Key> OptimizerKeys::of_all_rules() {
  std::vector<Key> keys;
  for (const Rule& rule : known_rules()) {
    each_option(rule, [&](const RuleOption& option, const auto& value) {
      const std::string_view name = name_of(option);
      if (name == kLearningRate.name || key_of(keys, name) != nullptr) return;
      if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(value)>>)
        keys.push_back({option, help_of(name), std::string(option.choices[static_cast<std::size_t>(value)])});
      else
        keys.push_back({option, help_of(name), value});
    });
  }
  return keys;
}

void declare(Config& config, OptimizerKeys& keys) {
  Choices rules;
  for (const Rule& rule : known_rules()) rules.emplace_back(rule_key(rule));
  config.section("optimizer", "the local update");
  config.key("rule", &keys.rule, std::move(rules), "update rule");
  // A rule takes 0 too, which a schedule may reach. Here it is the highest rate.
  config.key(std::string(kLearningRate.name), &keys.lr, above(0), "learning rate at its highest");
  config.key(
      "decay", &keys.decay, Choices{"all", "matrices"},
      "parameters to which weight_decay applies; matrices: those of two and more dimensions, so not biases "
      "and normalisation");
  for (OptimizerKeys::Key& key : keys.options) {
    std::visit(
        [&]<class Value>(Value& value) {
          std::string name(name_of(key.option));
          if constexpr (std::is_same_v<Value, bool>) {
            config.key(std::move(name), &value, key.help);
          } else if constexpr (std::is_same_v<Value, std::string>) {
            config.key(std::move(name), &value, Choices(key.option.choices.begin(), key.option.choices.end()),
                       key.help);
          } else {
            config.key(std::move(name), &value, key.option.range, key.help);
          }
        },
        key.value);
  }
}

void check(const Config& config, const OptimizerKeys& keys) {
  for (const OptimizerKeys::Key& key : keys.options) {
    const OptimizerKeys::Key* const needed = key_of(keys.options, key.option.needs);
    if (needed == nullptr || is_zero(key) || !is_zero(*needed)) continue;
    const std::string path = fmt::format("optimizer.{}", name_of(key.option));
    throw UsageError(fmt::format("{}: {} = true: wants optimizer.{} above 0", config.origin(path), path,
                                 name_of(needed->option)));
  }
}

Rule make_rule(const OptimizerKeys& keys) {
  const auto known = known_rules();
  const auto found = std::ranges::find(known, keys.rule, rule_key);
  if (found == known.end()) throw UsageError(fmt::format("optimizer.rule \"{}\" is unknown", keys.rule));
  Rule rule = *found;
  each_option(rule, [&]<class Value>(const RuleOption& option, Value& value) {
    if constexpr (std::is_same_v<Value, double>) {
      if (option.name == kLearningRate.name) return void(value = keys.lr);
    }
    const auto& given = key_of(keys.options, name_of(option))->value;
    if constexpr (std::is_enum_v<Value>) {
      const auto chosen = std::ranges::find(option.choices, std::get<std::string>(given));
      value = static_cast<Value>(chosen - option.choices.begin());
    } else {
      value = std::get<Value>(given);
    }
  });
  return rule;
}

Rule without_decay(Rule rule) {
  each_option(rule, []<class Value>(const RuleOption& option, Value& value) {
    if (option.name == "weight_decay") value = Value{};
  });
  return rule;
}

}  // namespace starling
