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

ClassificationTask::ClassificationTask(ClassSet set, const Recipe& recipe, const Drawer& who,
                                       std::shared_ptr<Classifier> network, double label_smoothing)
    : set_(std::move(set)),
      split_(read_class_split(recipe.data.split, "data.split")),
      batch_(recipe.train.batch),
      workers_(who.workers),
      label_smoothing_(label_smoothing),
      seed_(seed_of(recipe)),
      sampler_(make_sampler(set_, split_, batch_, who, seed_)),
      network_(std::move(network)) {}

std::vector<std::vector<std::int64_t>> ClassificationTask::class_counts() const {
  return starling::class_counts(set_, split_, batch_, workers_, seed_);
}

at::Tensor ClassificationTask::loss(const Batch& batch) {
  const Batch here = beside(*network_, batch);
  return at::cross_entropy_loss(logits(here[0]), here[1], {}, at::Reduction::Mean, -100, label_smoothing_);
}

void ClassificationTask::add_answers(Tally& tally, const Batch& batch) {
  const Batch here = beside(*network_, batch);
  const at::Tensor found = logits(here[0]), &labels = here[1];
  tally.counts[0] += found.argmax(1).eq(labels).sum().item<std::int64_t>();
  tally.loss += at::cross_entropy_loss(found, labels, {}, at::Reduction::Sum).item<double>();
}

Score ClassificationTask::accuracy(const Tally& whole, std::int64_t examples) {
  const auto n = static_cast<double>(examples);
  return {static_cast<double>(whole.counts[0]) / n, whole.loss / n};
}

std::vector<std::int64_t> numbers_of(std::int64_t first, std::int64_t last) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(std::max<std::int64_t>(0, last - first)));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace starling
