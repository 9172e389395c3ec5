// The parts shared by the tasks that sort images into classes.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "starling/data/class_split.h"
#include "starling/train/task.h"

namespace starling {

inline constexpr ScoreInfo kAccuracy{.name = "accuracy", .higher_is_better = true, .percent = true};

// One worker's share of a training set with classes, as data.split says.
class ClassShares {
 public:
  ClassShares(ClassSet set, const Recipe& recipe, const Drawer& who);

  Sampler& sampler() { return sampler_; }
  const Sampler& sampler() const { return sampler_; }
  std::vector<std::vector<std::int64_t>> counts() const;  // Task::class_counts()

 private:
  const ClassSet set_;
  const ClassSplit split_;
  const std::int64_t batch_;
  const int workers_;
  const std::uint64_t seed_;
  Sampler sampler_;
};

// Adds a test batch: the right answers to counts[0], and the sum of the cross entropies to loss.
// logits [n, classes], labels int64 [n].
void add_answers(Tally& tally, const at::Tensor& logits, const at::Tensor& labels);
// The share of right answers, and the mean loss, of so many examples.
Score accuracy(const Tally& whole, std::int64_t examples);

// first, first + 1, .., last - 1; nothing if last <= first.
std::vector<std::int64_t> numbers_of(std::int64_t first, std::int64_t last);

}  // namespace starling
