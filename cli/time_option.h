// Options such as `--every 500ms`.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

namespace starling::cli {

constexpr double kMostSeconds = 30 * 86'400.0;

// An option for a time of `least` seconds to 30 days. A number without a unit is in seconds.
inline CLI::Option* add_time(CLI::App& app, const char* name, double& seconds, const char* meaning,
                             double least) {
  const std::map<std::string, double> units{{"ms", 0.001}, {"s", 1}, {"m", 60}, {"h", 3600}};
  return app.add_option(name, seconds, meaning)
      ->transform(CLI::AsNumberWithUnit(units, CLI::AsNumberWithUnit::CASE_SENSITIVE, "TIME"))
      ->check(CLI::Range(least, kMostSeconds))
      ->type_name("TIME");
}

}  // namespace starling::cli
