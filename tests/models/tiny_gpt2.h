// A GPT-2 that is small enough for plain loops, and whose weights are large enough to matter.
#pragma once

#include <memory>

#include <ATen/ops/randn_like.h>

#include "starling/models/gpt2.h"

namespace starling::testing_models {

inline constexpr Gpt2Options kTiny{.vocabulary = 11, .context = 6, .width = 8, .heads = 2, .layers = 2};

inline std::shared_ptr<Gpt2> tiny() {
  torch::manual_seed(3);
  auto model = std::make_shared<Gpt2>(kTiny);
  const torch::NoGradGuard no_gradient;
  for (at::Tensor& p : model->parameters()) p.add_(at::randn_like(p), 0.3);
  return model;
}

}  // namespace starling::testing_models
