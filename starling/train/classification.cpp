#include "starling/train/classification.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

#include "starling/train/recipe.h"

namespace starling {

ClassShares::ClassShares(ClassSet set, const Recipe& recipe, const Drawer& who)
    : set_(std::move(set)),
      split_(read_class_split(recipe.data.split, "data.split")),
      batch_(recipe.train.batch),
      workers_(who.workers),
      seed_(seed_of(recipe)),
      sampler_(make_sampler(set_, split_, batch_, who, seed_)) {}

std::vector<std::vector<std::int64_t>> ClassShares::counts() const {
  return class_counts(set_, split_, batch_, workers_, seed_);
}

void add_answers(Tally& tally, const at::Tensor& logits, const at::Tensor& labels) {
  tally.counts[0] += logits.argmax(1).eq(labels).sum().item<std::int64_t>();
  tally.loss += at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum).item<double>();
}

Score accuracy(const Tally& whole, std::int64_t examples) {
  const auto n = static_cast<double>(examples);
  return {static_cast<double>(whole.counts[0]) / n, whole.loss / n};
}

std::vector<std::int64_t> numbers_of(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::max<std::int64_t>(0, last - first)));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace starling
