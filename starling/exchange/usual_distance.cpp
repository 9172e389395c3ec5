#include "starling/exchange/usual_distance.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace starling {

// The lower one of two medians.
double UsualDistance::value() const {
  if (!is_known()) return 0;
  std::vector<double> sorted = last_;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((sorted.size() - 1) / 2);
  std::ranges::nth_element(sorted, middle);
  return *middle;
}

bool UsualDistance::is_jump(double distance, double factor) const {
  const double usual = value();
  return usual > 0 && !(distance <= factor * usual);  // NaN jumps
}

bool UsualDistance::learn(double distance) {
  if (distance == 0 || !std::isfinite(distance)) return false;
  last_.push_back(distance);
  if (last_.size() > kRemembered) last_.erase(last_.begin());
  return true;
}

bool UsualDistance::refuse(double distance) {
  if (std::isfinite(distance)) refused_.push_back(distance);
  if (refused_.size() > kEnough) refused_.erase(refused_.begin());
  return refused_.size() == kEnough;
}

void UsualDistance::take_refused() { last_ = std::exchange(refused_, {}); }

}  // namespace starling
