// JSON as text, and on stdout.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

namespace starling::cli {

// Names of files and hosts need not be UTF-8; JSON must.
inline std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}
inline void print_json(const nlohmann::ordered_json& value) { fmt::print("{}", json_text(value)); }

}  // namespace starling::cli
