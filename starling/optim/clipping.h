// Gradients that are too large, or not finite. With clipping or skipping, the gradient is read once
// before the step. The kernel then scales it in its own pass, and .grad is unchanged.
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

  // A factor of the next step's gradient, applied first. None: that step is skipped.
  void scale_next(std::optional<float> scale) { given_ = scale; }

  // Returns the factor of this step's gradient, or none if the step is skipped. As in torch's
  // clip_grad_norm_ it is largest / (|g| + 1e-6), at most 1. g is the gradient times the factor of
  // scale_next(), divided by the loss scale. Without clipping and skipping, sum_of_squares(), which
  // reads the gradient, is not called.
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
