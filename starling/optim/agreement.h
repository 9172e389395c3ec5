// All workers want the same, begin with the same numbers, and fail together.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/optim/terms.h"

namespace starling {

class Exchange;
class Gathering;
class Optimizer;

// Their number, then type and sizes of each as "WHAT I".
void add_tensors(Terms& terms, const std::string& what, const std::vector<at::Tensor>& tensors);

// Throws UsageError on ALL workers if the terms differ. The message has the first term that
// differs, both values and both ranks.
void agree(Gathering& all, const Terms& mine);

// The same over an exchange, at less cost: the message has this worker's value alone. The first
// term is the number of the others, or there are equally many on all.
void agree(Exchange& exchange, const Terms& mine);

std::uint32_t checksum_of(const Terms& terms);
// The values of dense tensors count, in order, each in its own memory order.
std::uint32_t checksum_of(const std::vector<at::Tensor>& tensors);

// Copies worker 0's values to all, and agrees on their checksum.
void make_equal(Gathering& all, const std::vector<at::Tensor>& tensors);

// Collective, over the edges: every worker calls its own function. If `own` throws Error on one
// worker, all workers throw: this one its own error, the others an error that names it ("worker 2
// could not <what>").
void together(Optimizer& optimizer, const std::string& what, const std::function<void()>& own);

}  // namespace starling
