#include "starling/optim/state_text.h"

#include <charconv>

#include "starling/core/text.h"
#include "starling/kernels/modular.h"

namespace starling {

std::optional<std::vector<int>> read_grids(std::string_view text) {
  std::vector<int> exponents;
  const char* at = text.data();
  for (const char* const end = at + text.size(); at != end;) {
    int& exponent = exponents.emplace_back();
    const auto [stop, error] = std::from_chars(at, end, exponent);
    if (error != std::errc() || !Grid::allows(exponent) || (stop != end && *stop != ' ')) return std::nullopt;
    at = stop == end ? stop : stop + 1;
  }
  return exponents;
}

std::optional<std::int64_t> read_position(std::string_view text) {
  const auto position = parse_number<std::int64_t>(text);
  return position && *position >= 0 ? position : std::nullopt;
}

}  // namespace starling
