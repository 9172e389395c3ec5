// What a worker does between two steps of its optimizer: batches, forward, backward.
#pragma once

#include <cstdint>
#include <memory>

#include "starling/data/fashion_mnist.h"
#include "starling/data/sampler.h"
#include "starling/models/classifier.h"
#include "starling/optim/optimizer.h"
#include "starling/train/recipe.h"

namespace starling {

// The images that the recipe trains on.
ImageSet training_images(const Recipe& recipe, const ImageSet& all);

class Learner {
 public:
  Learner(const Recipe& recipe, ImageSet images, int rank, int workers);

  Classifier& model() { return *model_; }
  double steps_per_epoch() const;
  std::int64_t steps() const;  // of the whole run

  // Step 0, 1, ..: leaves the gradient in .grad; returns the loss, the mean over its passes. Throws Error where it is not finite.
  double gradient(std::int64_t step, Optimizer& optimizer);

 private:
  const Recipe recipe_;
  const ImageSet images_;
  const int rank_;
  const std::uint64_t seed_;
  Sampler sampler_;
  const std::shared_ptr<Classifier> model_;
};

}  // namespace starling
