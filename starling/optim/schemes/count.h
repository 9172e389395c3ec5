// A whole number in a scheme's state, such as its steps so far.
#pragma once

#include <concepts>
#include <span>
#include <string>

#include <fmt/format.h>

#include "starling/core/whole.h"
#include "starling/optim/schemes/scheme.h"

namespace starling {

// Visits it under this name. It begins as 0, and is at most `most`. It outlives the visit.
template <std::integral Count>
void visit_count(StateVisitor& visitor, const std::string& name, Count& count, double most = kMostWhole) {
  visitor.numbers(name,
                  {.fresh = {0},
                   .now = {static_cast<double>(count)},
                   .set = [&count](std::span<const double> given) { count = static_cast<Count>(given[0]); },
                   .refusal = [most](std::span<const double> given) -> std::string {
                     if (is_whole_number(given[0], 0, most)) return "";
                     return most == kMostWhole ? "wants a whole number from 0"
                                               : fmt::format("wants a whole number from 0 to {}", most);
                   }});
}

}  // namespace starling
