// The allowed numbers of an option.
#pragma once

#include <limits>
#include <string>

namespace starling {

// Both ends are included, unless `*_open`.
struct Range {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
  bool least_open = false;
  bool most_open = false;

  bool holds(double value) const;  // false for NaN and infinities
  std::string text() const;        // "at least 0 and below 1"; empty if every number is allowed
};
constexpr Range at_least(double least) { return {.least = least}; }
constexpr Range above(double least) { return {.least = least, .least_open = true}; }
constexpr Range between(double least, double most) { return {.least = least, .most = most}; }
constexpr Range from_below(double least, double most) {
  return {.least = least, .most = most, .most_open = true};
}

}  // namespace starling
