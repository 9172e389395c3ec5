// Gradients that are too large, or not finite. Only where one of the two is asked for is the gradient read before the
// step, once; the kernel then scales it on the way, and .grad stays as it is.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>

namespace starling {

class Clipping {
 public:
  Clipping() = default;
  Clipping(double largest, bool skip) : largest_(largest), skip_(skip) {}

  bool asked() const { return largest_ > 0 || skip_; }

  // What to multiply this step's gradient by, as torch's clip_grad_norm_ does: largest / (|g| + 1e-6), at most 1. None: the
  // step is to be skipped. sum_of_squares() reads the gradient; it is not called where nothing is asked for.
  template <class SumOfSquares>
  std::optional<float> scale(const SumOfSquares& sum_of_squares) {
    if (!asked()) return 1;
    const double sum = sum_of_squares();
    if (skip_ && !std::isfinite(sum)) {
      ++skipped_;
      return std::nullopt;
    }
    if (largest_ == 0) return 1;
    const double factor = largest_ / (std::sqrt(sum) + 1e-6);
    return factor >= 1 ? 1 : static_cast<float>(factor);
  }

  std::uint64_t skipped() const { return skipped_; }  // steps

 private:
  double largest_ = 0;  // 0: not clipped
  bool skip_ = false;
  std::uint64_t skipped_ = 0;
};

}  // namespace starling
