// The usual one of distances that come one after the other, and those that jump.
//
//   usual   the median of the last distances that were no jumps; not known before kEnough of them
//   jump    a distance above a factor times the usual one, or none at all (NaN)
#pragma once

#include <cstddef>
#include <vector>

namespace starling {

class UsualDistance {
 public:
  static constexpr std::size_t kEnough = 16, kRemembered = 32;  // distances

  bool is_known() const { return last_.size() >= kEnough; }
  double value() const;  // 0: not known yet
  bool is_jump(double distance, double factor) const;
  // Learns one that is no jump. Zero, infinity and NaN say nothing: then returns false.
  bool learn(double distance);
  // Notes one that jumps. Returns whether they are kEnough in a row.
  bool refuse(double distance);
  void forget_refused() { refused_.clear(); }
  // Those that were refused are the usual ones from now on.
  void take_refused();

 private:
  std::vector<double> last_, refused_;
};

}  // namespace starling
