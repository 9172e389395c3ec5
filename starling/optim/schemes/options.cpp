#include "starling/optim/schemes/options.h"

#include <algorithm>
#include <type_traits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/optim/schemes/table.h"

namespace starling {
namespace {

std::string shown(const SchemeOption& option, const SchemeValue& value) {
  const auto* const text = std::get_if<std::string>(&value);
  return text != nullptr ? fmt::format("{} \"{}\"", option.name, *text)
                         : fmt::format("{} = {}", option.name, value_text(value));
}

// The value, converted to the option's type.
SchemeValue checked(const SchemeOption& option, SchemeValue value) {
  const bool is_text = std::holds_alternative<std::string_view>(option.standard);
  const bool is_whole = std::holds_alternative<std::int64_t>(option.standard);
  const auto refuse = [&](const std::string& allowed, const std::string& near = "") {
    throw UsageError(fmt::format("{} is not allowed{}: {}", shown(option, value), near, allowed));
  };
  if (const auto* const text = std::get_if<std::string>(&value)) {
    if (!is_text) refuse("a number");
    if (std::ranges::find(option.choices, *text) == option.choices.end())
      refuse(allowed_text(option), did_you_mean(*text, {option.choices.begin(), option.choices.end()}));
    return value;
  }
  if (is_text) refuse(allowed_text(option));
  if (is_whole && std::holds_alternative<double>(value)) refuse("a whole number");
  const double number = std::visit(
      [](const auto& v) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(v)>>) return static_cast<double>(v);
        return 0.0;
      },
      value);
  if (!option.range.holds(number)) refuse(allowed_text(option));
  return is_whole ? value : SchemeValue(number);
}

[[noreturn]] void refuse_unknown(const std::string& name, const SchemeInfo& info) {
  std::vector<std::string> names;
  for (const SchemeOption& option : info.options) names.emplace_back(option.name);
  throw UsageError(fmt::format("scheme \"{}\" has no option {}{}; it has {}", info.name, name,
                               did_you_mean(name, names),
                               names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
}

// Checks an option of other schemes. It may be given if it has its default there.
void check_foreign(const std::string& name, const SchemeValue& value, const SchemeInfo& info) {
  const auto all = scheme_options();
  const auto of = std::ranges::find(all, name, [](const SharedOption& o) { return o.option->name; });
  if (of == all.end()) refuse_unknown(name, info);
  const SchemeValue given = checked(*of->option, value);
  if (given == default_of(*of->option)) return;
  const std::string owners = of->schemes.size() == 1
                                 ? fmt::format("scheme \"{}\"", of->schemes.front())
                                 : fmt::format("schemes {}", fmt::join(of->schemes, ", "));
  throw UsageError(
      fmt::format("{} is for {}, not \"{}\": {}", shown(*of->option, given), owners, info.name,
                  of->option->is_automatic() ? "leave it out" : "use " + default_text(*of->option)));
}

}  // namespace

SchemeSettings::SchemeSettings(const SchemeChoice& choice) {
  const SchemeInfo& info = scheme_info(choice.name);
  for (const SchemeOption& option : info.options) all_.emplace_back(&option, default_of(option));
  for (const auto& [name, value] : choice.options) {
    const auto own = std::ranges::find(all_, name, [](const auto& one) { return one.first->name; });
    if (own == all_.end()) {
      check_foreign(name, value, info);
    } else {
      own->second = checked(*own->first, value);
    }
  }
}

const std::optional<SchemeValue>& SchemeSettings::at(std::string_view name) const {
  return std::ranges::find(all_, name, [](const auto& one) { return one.first->name; })->second;
}

std::optional<double> SchemeSettings::automatic(std::string_view name) const {
  const auto& value = at(name);
  return value ? std::optional(std::get<double>(*value)) : std::nullopt;
}

std::string value_text(const std::optional<SchemeValue>& value) {
  if (!value) return "automatic";
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, *value);
}

std::optional<SchemeValue> default_of(const SchemeOption& option) {
  return std::visit(
      [](const auto& standard) -> std::optional<SchemeValue> {
        using T = std::decay_t<decltype(standard)>;
        if constexpr (std::is_same_v<T, Automatic>)
          return std::nullopt;
        else if constexpr (std::is_same_v<T, std::string_view>)
          return std::string(standard);
        else
          return standard;
      },
      option.standard);
}

std::string default_text(const SchemeOption& option) {
  const std::string value = value_text(default_of(option));
  return option.is_automatic() ? fmt::format("{}: {}", value, std::get<Automatic>(option.standard).how)
                               : value;
}

std::string allowed_text(const SchemeOption& option) {
  return option.choices.empty() ? option.range.text() : fmt::format("{}", fmt::join(option.choices, " or "));
}

}  // namespace starling
