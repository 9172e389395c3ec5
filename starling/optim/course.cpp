#include "starling/optim/course.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/text.h"

namespace starling {

Course::Course(const std::string& option, const std::string& points, double first, Range allowed)
    : first_(first) {
  std::istringstream words(points);
  for (std::string word; words >> word;) {
    const std::string_view text = word;
    const std::size_t colon = std::min(text.find(':'), text.size() - 1);
    const auto step = parse_number<std::uint64_t>(text.substr(0, colon));
    const auto value = parse_number<double>(text.substr(colon + 1));
    // A third point of the same step is refused: it would have no effect.
    const auto same = std::ranges::count(points_, step.value_or(0), &Point::step);
    const bool rises = step && (points_.empty() || *step >= points_.back().step) && same < 2;
    if (!rises || !value || !allowed.holds(*value))
      throw UsageError(fmt::format(
          "{} = {}: {} is not allowed: wants STEP:VALUE with rising steps, at most two of the same step, and "
          "values {}",
          option, short_of(points), short_of(word), allowed.text()));
    points_.push_back({*step, *value});
  }
}

double Course::at(std::uint64_t step) const {
  const auto next = std::ranges::lower_bound(points_, step, {}, &Point::step);
  if (next == points_.begin()) return first_;
  const Point& last = *(next - 1);
  if (next == points_.end()) return last.value;
  const auto passed = static_cast<double>(step - last.step),
             all = static_cast<double>(next->step - last.step);
  return std::lerp(last.value, next->value, passed / all);
}

}  // namespace starling
