#include "starling/optim/state_text.h"

#include <charconv>

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
  std::int64_t position = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), position);
  if (error != std::errc() || stop != text.data() + text.size() || position < 0) return std::nullopt;
  return position;
}

}  // namespace starling
