// The texts in a state's metadata.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace starling {

// Exponents that grids allow, between spaces. Nothing if the text is something else.
std::optional<std::vector<int>> read_grids(std::string_view text);
// A number from 0. Nothing if the text is something else.
std::optional<std::int64_t> read_position(std::string_view text);

}  // namespace starling
