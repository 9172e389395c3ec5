#include "starling/train/evaluate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include <ATen/ops/argmax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/sum.h>

namespace starling {

namespace {

// The sum over all workers of their scores, each on its own range of images.
Score test_together(Optimizer& optimizer, Classifier& model, const ImageSet& set, std::int64_t first,
                    std::int64_t last) {
  const Score mine = test(model, set, first, last);
  std::array<float, 3> values{static_cast<float>(mine.images), static_cast<float>(mine.correct),
                              static_cast<float>(mine.loss)};
  const int workers = optimizer.average(values);
  return {std::llround(double{values[0]} * workers), std::llround(double{values[1]} * workers),
          double{values[2]} * workers};
}

}  // namespace

Score test(Classifier& model, const ImageSet& set, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kBatch = 50;  // its activations stay in cache
  const at::NoGradGuard no_grad;
  model.eval();
  Score score;
  for (std::int64_t begin = first; begin < last; begin += kBatch) {
    std::vector<std::int64_t> indices(std::min(kBatch, last - begin));
    std::iota(indices.begin(), indices.end(), begin);
    const Batch batch = make_batch(set, indices);
    const at::Tensor logits = model.forward(batch.images);
    score.images += batch.labels.size(0);
    score.correct += logits.argmax(1).eq(batch.labels).sum().item<std::int64_t>();
    score.loss += at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum).item<double>();
  }
  model.train();
  return score;
}

AverageScore test_average(Optimizer& optimizer, Classifier& model, const ImageSet& set) {
  const Consensus average(optimizer);
  // This worker's place among those that are left.
  const std::vector<int> lost = optimizer.statistics().lost;
  const int rank = optimizer.world().rank;
  const auto place = rank - std::count_if(lost.begin(), lost.end(), [&](int other) { return other < rank; });
  const auto left = optimizer.world().size - static_cast<std::int64_t>(lost.size());
  Score score =
      test_together(optimizer, model, set, set.size() * place / left, set.size() * (place + 1) / left);
  if (score.images != set.size()) {
    // Somebody was lost meanwhile, and its images with it: each tests all of them.
    score = test_together(optimizer, model, set, 0, set.size());
  }
  const auto images = static_cast<double>(score.images);
  return {static_cast<double>(score.correct) / images, score.loss / images, average.distance()};
}

double test_worst(Optimizer& optimizer, Classifier& model, const ImageSet& set) {
  std::array<std::int64_t, 1> wrong{set.size() - test(model, set, 0, set.size()).correct};
  optimizer.maximum(wrong);
  return 1 - static_cast<double>(wrong[0]) / static_cast<double>(set.size());
}

}  // namespace starling
