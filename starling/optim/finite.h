#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>

namespace starling {

// Whether all values are finite. Waits for the tensor's device.
inline bool is_finite(const at::Tensor& tensor) { return at::isfinite(tensor).all().item<bool>(); }

}  // namespace starling
