// A network that assigns images to classes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace starling {

// The type that is called "fp32", "bf16" or "fp16".
at::ScalarType type_named(const std::string& dtype);

class Classifier : public torch::nn::Module {
 public:
  // float [n, channels, height, width] -> logits [n, classes]
  virtual at::Tensor forward(at::Tensor images) = 0;
};

const std::vector<std::string>& known_classifiers();
// Makes a classifier by its name. The seed decides the initial weights. `dtype` is the type of
// weights and activations, "fp32", "bf16" or "fp16"; normalisation layers are always fp32. Throws
// UsageError for an unknown name.
std::shared_ptr<Classifier> make_classifier(const std::string& name, int width, const std::string& dtype,
                                            std::uint64_t seed);

}  // namespace starling
