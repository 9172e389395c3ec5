// Tests on a set of images that all workers hold. Collective, except test().
#pragma once

#include <cstdint>

#include "starling/data/fashion_mnist.h"
#include "starling/models/classifier.h"
#include "starling/optim/optimizer.h"

namespace starling {

struct Score {
  std::int64_t images = 0;
  std::int64_t correct = 0;
  double loss = 0;  // sum
};
// This worker's model, as it stands, on the images first..last-1.
Score test(Classifier& model, const ImageSet& set, std::int64_t first, std::int64_t last);

struct AverageScore {
  double accuracy = 0;
  double loss = 0;                // mean
  double consensus_distance = 0;  // of the workers' models
};
// The average model. The workers that are left share the images out among them; every image counts once.
AverageScore test_average(Optimizer& optimizer, Classifier& model, const ImageSet& set);

// The lowest accuracy of the workers' own models, each on the whole set.
double test_worst(Optimizer& optimizer, Classifier& model, const ImageSet& set);

}  // namespace starling
