// A network that sorts images into classes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace starling {

class Classifier : public torch::nn::Module {
 public:
  // float [n, channels, height, width] -> logits [n, classes]
  virtual at::Tensor forward(at::Tensor images) = 0;
};

const std::vector<std::string>& known_classifiers();
// By the name that a recipe writes. The same seed gives the same initial weights. `dtype`: "fp32"; or "bf16" or
// "fp16", then weights and activations are that, but those of normalisation layers fp32.
std::shared_ptr<Classifier> make_classifier(const std::string& name, int width, const std::string& dtype,
                                            std::uint64_t seed);

}  // namespace starling
