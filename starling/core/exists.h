#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace starling {

// Whether there is something at this path. False too if the system does not tell.
inline bool exists(const std::string& path) {
  std::error_code none;
  return std::filesystem::exists(path, none);
}

}  // namespace starling
