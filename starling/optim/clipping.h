// Gradients that are too large, or not finite. Only where one of the two is asked for is the gradient read before the
// step, once; the kernel then scales it on the way, and .grad stays as it is.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "starling/optim/loss_scale.h"

namespace starling {

class Clipping {
 public:
  Clipping() = default;
  Clipping(double largest, bool skip, std::optional<LossScaling> scaling)
      : largest_(largest), skip_(skip || scaling), loss_scale_(scaling) {}

  // What the next step's gradient is to be multiplied by first. None: that step is to be skipped.
  void scale_next(std::optional<float> scale) { given_ = scale; }

  // What to multiply this step's gradient by, as torch's clip_grad_norm_ does: largest / (|g| + 1e-6), at most 1; g is the
  // gradient times what scale_next() was given, divided by the loss's scale. None: the step is to be skipped.
  // sum_of_squares() reads the gradient; it is not called where nothing is asked for.
  template <class SumOfSquares>
  std::optional<float> scale(const SumOfSquares& sum_of_squares) {
    std::optional<float> scale = std::exchange(given_, 1);
    if (scale && loss_scale_) *scale /= static_cast<float>(loss_scale_->value());
    if (scale && (largest_ > 0 || skip_)) {
      const double norm = *scale * std::sqrt(sum_of_squares());
      if (skip_ && !std::isfinite(norm)) {
        scale.reset();
      } else if (largest_ > 0) {
        const double factor = largest_ / (norm + 1e-6);
        if (factor < 1) scale = static_cast<float>(*scale * factor);
      }
    }
    if (!scale) ++skipped_;
    if (loss_scale_) loss_scale_->stepped(scale.has_value());
    return scale;
  }

  std::uint64_t skipped() const { return skipped_; }                         // steps
  LossScale* loss_scale() { return loss_scale_ ? &*loss_scale_ : nullptr; }  // null: losses are not scaled

 private:
  double largest_ = 0;  // 0: not clipped
  bool skip_ = false;
  std::uint64_t skipped_ = 0;
  std::optional<float> given_ = 1;
  std::optional<LossScale> loss_scale_;
};

}  // namespace starling
