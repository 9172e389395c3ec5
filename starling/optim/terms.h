// The values that all workers must agree on, and their text between workers.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace starling {

// Values that must be equal on all workers, such as {"topology", "base-2"}. They are compared in
// this order, and the first difference is reported.
using Terms = std::vector<std::pair<std::string, std::string>>;

std::string to_text(const Terms& terms);
// Throws Error, naming the worker, if the text is not one of to_text().
Terms read_terms(const std::string& text, std::size_t worker);
// The first term in which `other` worker differs from `one`, as a message; empty: none.
std::string difference(const Terms& of_one, std::size_t one, const Terms& of_other, std::size_t other);

}  // namespace starling
