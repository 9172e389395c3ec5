#include "starling/optim/terms.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {

std::string to_text(const Terms& terms) {
  return nlohmann::json(terms).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Terms read_terms(const std::string& text, std::size_t worker) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  const auto is_term = [](const nlohmann::json& term) {
    return term.is_array() && term.size() == 2 && term[0].is_string() && term[1].is_string();
  };
  if (!json.is_array() || !std::ranges::all_of(json, is_term))
    throw Error(fmt::format("worker {} says {} in place of its options: is it another version of Starling?",
                            worker, short_of(text)));
  return json.get<Terms>();
}

std::string difference(const Terms& of_one, std::size_t one, const Terms& of_other, std::size_t other) {
  for (std::size_t i = 0; i < std::max(of_one.size(), of_other.size()); ++i) {
    const auto term = [&](const Terms& terms) {
      return i < terms.size() ? terms[i] : std::pair<std::string, std::string>{"", "nothing"};
    };
    const auto [name, value] = term(of_one);
    const auto [other_name, other_value] = term(of_other);
    if (name == other_name && value == other_value) continue;
    return fmt::format("{}: {} at worker {}, {} at worker {}", name.empty() ? other_name : name, value, one,
                       other_value, other);
  }
  return "";
}

}  // namespace starling
