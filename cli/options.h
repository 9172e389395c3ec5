// Options that several commands declare alike.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include <fmt/format.h>

namespace starling::cli {

constexpr int kMostHours = 720;

// An option such as `--every 500ms`, for a time of `least` seconds to 720 hours. A number without a
// unit is in seconds.
inline CLI::Option* add_time(CLI::App& app, const char* name, double& seconds, const char* meaning,
                             double least) {
  const std::map<std::string, double> units{{"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}};
  return app.add_option(name, seconds, meaning)
      ->transform(CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_SENSITIVE, "TIME"))
      ->check(
          [least](const std::string& given) {
            const bool fits = CLI::Range(least, 3600.0 * kMostHours)(given).empty();
            return fits ? "" : fmt::format("{} s is not from {} s to {} h", given, least, kMostHours);
          },
          fmt::format("TIME in [{} s - {} h]", least, kMostHours))
      ->type_name("TIME");
}

// A number from `least` to `most`, whose value now is its default.
template <class Number, class Bound>
CLI::Option* add_number(CLI::App& app, const std::string& name, Number& value, const std::string& meaning,
                        const char* type, Bound least, Bound most) {
  return app.add_option(name, value, meaning)
      ->type_name(type)
      ->check(CLI::Range(least, most))
      ->capture_default_str();
}

}  // namespace starling::cli
