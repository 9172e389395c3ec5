// This machine as people and other machines see it: its name and its clock.
#pragma once

#include <array>
#include <chrono>
#include <string>

#include <unistd.h>

namespace starling {

// At most 255 bytes; empty if the system does not tell it.
inline std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

// Seconds since 1970 by the system clock.
inline double unix_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace starling
