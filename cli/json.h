// JSON as text, and on stdout.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace starling::cli {

// Names of files and hosts need not be UTF-8; JSON must.
inline std::string json_text(const nlohmann::ordered_json& value) {
  return value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}
// null if there is no value.
template <class T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}
inline void print_json(const nlohmann::ordered_json& value) { fmt::print("{}", json_text(value)); }

}  // namespace starling::cli
