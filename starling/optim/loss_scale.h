// Dynamic loss scaling (Micikevicius et al. 2018, arXiv 1710.03740), as in torch.amp.GradScaler.
// Gradients in float16 are 0 below 6e-8. So the loss is multiplied by a scale before backward(),
// and its gradient is divided by it inside step().
//
//   a gradient that is not finite            the step mixes only;  scale <- scale / 2
//   `grow_every` steps in a row without one  scale <- 2 scale
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace starling {

struct LossScaling {
  double initial = 65536;
  int grow_every = 2000;
};

class LossScale {
 public:
  explicit LossScale(LossScaling options) : grow_every_(options.grow_every), value_(options.initial) {}

  double value() const { return value_; }
  // in a row, since the scale last changed
  std::int64_t finite_steps() const { return finite_steps_; }
  void set(double value, std::int64_t finite_steps) { value_ = value, finite_steps_ = finite_steps; }

  // Call after each step, with whether its gradient was finite. The scale and its reciprocal stay
  // in a float's range.
  void stepped(bool finite) {
    if (!finite) {
      set(std::max(value_ / 2, kLeast), 0);
    } else if (++finite_steps_ >= grow_every_) {
      set(std::min(value_ * 2, 1 / kLeast), 0);
    }
  }
  static bool allows(double value) { return value >= kLeast && value <= 1 / kLeast; }

 private:
  static constexpr double kLeast = std::numeric_limits<float>::min();
  std::int64_t grow_every_;
  double value_;
  std::int64_t finite_steps_ = 0;
};

}  // namespace starling
