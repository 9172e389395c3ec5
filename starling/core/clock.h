// The time of the state machines. It is passed in, so that a test or a simulation can control it.
#pragma once

#include <chrono>

namespace starling {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Duration = Clock::duration;

inline double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration of_seconds(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

}  // namespace starling
