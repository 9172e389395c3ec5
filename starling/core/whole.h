// Whole numbers that files and peers give as doubles.
#pragma once

#include <cmath>

namespace starling {

inline constexpr double kMostWhole = 0x1p53 - 1;  // up to it a double has each of them

// False for NaN too.
inline bool is_whole_number(double number, double least = 0, double most = kMostWhole) {
  return number >= least && number <= most && number == std::floor(number);
}

}  // namespace starling
