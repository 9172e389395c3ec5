// The weight w of push-sum (optim/schemes/pushes.h) travels behind the values of its block, as
// two more of them: the second holds the rounding error of the first.
#pragma once

#include <cstddef>

#include "starling/exchange/sent_block.h"

namespace starling {

constexpr std::size_t kWeightValues = 2;  // behind those of a block
constexpr double kLeastWeight =
    1.0 / 8;  // a worker pushes from this weight on; with less it keeps its values, and pushes 0

// to: behind the block's values.
void write_weight(double weight, Wire wire, std::byte* to);
// The weight as it was sent, from a block with this number of values. It is not trusted: the caller
// checks it.
double weight_of(const SentBlock& sent, std::size_t values);

}  // namespace starling
