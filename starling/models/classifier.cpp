#include "starling/models/classifier.h"

#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/models/resnet.h"

namespace starling {

std::shared_ptr<Classifier> make_classifier(const std::string& name, int width, std::uint64_t seed) {
  torch::manual_seed(seed);
  if (name == "resnet-8") return make_resnet8({.width = width});
  throw UsageError(fmt::format("model.name = {}: unknown, allowed is resnet-8", name));
}

}  // namespace starling
