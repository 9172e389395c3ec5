// What every benchmark needs of time.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

namespace bench {

// Seconds.
inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

}  // namespace bench
