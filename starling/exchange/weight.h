// The weight w of push-sum (optim/schemes/push_sum.h) travels behind the values of its block, as
// two more of them: the second is what the first loses to rounding.
#pragma once

#include <cstddef>

#include "starling/exchange/sent_block.h"

namespace starling {

constexpr std::size_t kWeightValues = 2;  // behind those of a block
constexpr double kLeastWeight =
    1.0 / 8;  // from which on a worker pushes: with less it keeps what it has, and pushes 0

// to: behind the block's values.
void write_weight(double weight, Wire wire, std::byte* to);
// As it was sent, of a block of so many values. Anybody's number: the caller checks it.
double weight_of(const SentBlock& sent, std::size_t values);

}  // namespace starling
