// The parts shared by the tasks that sort images into classes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/train/task.h"

namespace starling {

inline constexpr ScoreInfo kAccuracy{.name = "accuracy", .higher_is_better = true, .percent = true};

// Adds a test batch: the right answers to counts[0], and the sum of the cross entropies to loss.
// logits [n, classes], labels int64 [n].
void add_answers(Tally& tally, const at::Tensor& logits, const at::Tensor& labels);
// The share of right answers, and the mean loss, of so many examples.
Score accuracy(const Tally& whole, std::int64_t examples);

// first, first + 1, .., last - 1; nothing if last <= first.
std::vector<std::int64_t> numbers_of(std::int64_t first, std::int64_t last);

}  // namespace starling
