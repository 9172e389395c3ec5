// The exact average of tensors of any type, over the edges of an exchange.
//
//   floating-point, complex   the mean; of float64 and complex128 in double, of others in float
//   integers, bool            the maximum
//
// A worker with a NaN in a tensor is left out of that tensor: it gets the average of the others. If
// no worker is without one there, all count, and numbers that are NaN at a worker become NaN.
// Infinities count as numbers, because masks have them.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/core/log.h"
#include "starling/exchange/exchange.h"

namespace starling {

// Throws UsageError, naming the tensor as "WHAT I", if one cannot be averaged in place.
void check_averaged(const std::string& what, const std::vector<at::Tensor>& tensors);

struct AverageOptions {
  std::string what = "tensor";  // in messages
  Log log{};                    // one warning if this worker is left out of tensors
  bool counts = true;           // false: this worker is left out of all tensors, without a warning
};

// Replaces the values. Collective: types and sizes are equal on all workers. Returns the ranks of
// the workers that took part: none if the others have ended it without this one, which keeps its
// values. Blocks and throws as Exchange::average().
std::set<int> average(Exchange& exchange, const std::vector<at::Tensor>& tensors,
                      const AverageOptions& options);

// The average over the workers whose values are finite, and have not jumped as far as they know.
struct FiniteAverage {
  bool alone = false;  // the others have ended it without this worker: there is no average
  bool finite = true;  // this worker's values are
  bool counts = true;  // this worker's values are part of it
  float share = 1;     // of the workers: those whose values are. 0: there is no average
};
// average: replaces the values by their mean over all workers, and returns whether there is one.
// is_apart: this worker's values have jumped (exchange/jump_guard.h); nothing: no worker can know
// that. If no worker is left without those that have jumped, these count.
FiniteAverage average_finite(std::vector<float>& values, const std::function<bool(std::span<float>)>& average,
                             std::optional<bool> is_apart = {});

}  // namespace starling
