#include "starling/models/classifier.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/models/resnet8.h"

namespace starling {

at::ScalarType type_named(const std::string& dtype) {
  return dtype == "bf16" ? at::kBFloat16 : dtype == "fp16" ? at::kHalf : at::kFloat;
}

const std::vector<std::string>& known_classifiers() {
  static const std::vector<std::string> kNames{"resnet-8"};
  return kNames;
}

std::shared_ptr<Classifier> make_classifier(const std::string& name, int width, const std::string& dtype,
                                            std::uint64_t seed) {
  torch::manual_seed(seed);
  if (name == "resnet-8") return make_resnet8({.width = width, .type = type_named(dtype)});
  throw UsageError(fmt::format("model.name = {}: unknown{}, allowed is {}", name,
                               did_you_mean(name, known_classifiers()),
                               fmt::join(known_classifiers(), ", ")));
}

}  // namespace starling
