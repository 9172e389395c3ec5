// JSON on stdout.
#pragma once

#include <nlohmann/json.hpp>

#include <fmt/format.h>

namespace starling::cli {

// Names of files and hosts need not be UTF-8; JSON must.
inline void print_json(const nlohmann::ordered_json& value) {
  fmt::print("{}\n", value.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

}  // namespace starling::cli
