// The exact average of tensors of any type, over the edges of an exchange.
//
//   floating-point, complex   the mean; of float64 and complex128 in double, of others in float
//   integers, bool            the maximum
#pragma once

#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/exchange/exchange.h"

namespace starling {

// Throws UsageError, naming the tensor as "WHAT I", if one cannot be averaged in place.
void check_averaged(const std::string& what, const std::vector<at::Tensor>& tensors);

// Replaces the values. Collective: types and sizes are equal on all workers. Returns the ranks of
// the workers that took part. Blocks and throws as Exchange::average().
std::set<int> average(Exchange& exchange, const std::vector<at::Tensor>& tensors);

}  // namespace starling
