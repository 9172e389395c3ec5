// The options of schemes. Each scheme's file declares them once, with ranges, defaults and
// meanings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "starling/core/range.h"
#include "starling/optim/scheme_choice.h"

namespace starling {

struct SchemeInfo;

// A default that the scheme computes, and how. The option is a real number.
struct Automatic {
  std::string_view how;
};

struct SchemeOption {
  std::string_view name;
  // Its type is the option's type.
  std::variant<Automatic, std::int64_t, double, std::string_view> standard;
  Range range{};                                // of numbers
  std::span<const std::string_view> choices{};  // of a text
  std::string_view meaning;

  bool is_automatic() const { return std::holds_alternative<Automatic>(standard); }
};

// A scheme's options with their values: the given ones, and defaults for the others.
class SchemeSettings {
 public:
  // Throws UsageError if the scheme has no such option, or a value is not allowed. An option of
  // another scheme is accepted if its value is its default there.
  explicit SchemeSettings(const SchemeChoice& choice);

  std::int64_t integer(std::string_view name) const { return std::get<std::int64_t>(*at(name)); }
  double number(std::string_view name) const { return std::get<double>(*at(name)); }
  std::optional<double> automatic(std::string_view name) const;  // none: not given
  const std::string& text(std::string_view name) const { return std::get<std::string>(*at(name)); }
  // In the order of the declaration.
  const std::vector<std::pair<const SchemeOption*, std::optional<SchemeValue>>>& all() const { return all_; }

 private:
  const std::optional<SchemeValue>& at(std::string_view name) const;
  std::vector<std::pair<const SchemeOption*, std::optional<SchemeValue>>> all_;
};

// "0.5", "poisson", "automatic".
std::string value_text(const std::optional<SchemeValue>& value);
// The same of the default, with how an automatic one is computed: "automatic: beta".
std::string default_text(const SchemeOption& option);
// "at least 0 and at most 1", "poisson or fixed"; empty: all values are allowed.
std::string allowed_text(const SchemeOption& option);
// The default as a value; none: automatic.
std::optional<SchemeValue> default_of(const SchemeOption& option);

}  // namespace starling
