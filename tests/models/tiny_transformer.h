// A tiny Transformer, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>

#include "starling/models/transformer.h"

namespace starling {

constexpr TransformerOptions kTinyTransformer{
    .vocabulary = 11, .width = 8, .heads = 2, .layers = 2, .inner = 12, .dropout = 0};

// In eval mode, with weights that are large enough to matter.
inline std::shared_ptr<Transformer> tiny_transformer(double dropout = 0, std::int64_t vocabulary = 11,
                                                     std::uint64_t seed = 3) {
  torch::manual_seed(seed);
  TransformerOptions options = kTinyTransformer;
  options.dropout = dropout;
  options.vocabulary = vocabulary;
  auto model = std::make_shared<Transformer>(options);
  model->eval();
  const torch::NoGradGuard no_gradient;
  for (at::Tensor& p : model->parameters()) p.add_(at::randn_like(p), 0.3);
  return model;
}

inline at::Tensor indices(const std::vector<std::int64_t>& values) {
  const at::Tensor tensor = at::empty({std::ssize(values)}, at::kLong);
  std::ranges::copy(values, tensor.data_ptr<std::int64_t>());
  return tensor;
}

// Rows of sentences with padding behind them.
inline at::Tensor padded(const std::vector<std::vector<std::int64_t>>& sentences) {
  std::size_t longest = 0;
  for (const auto& sentence : sentences) longest = std::max(longest, sentence.size());
  const at::Tensor rows = at::zeros({std::ssize(sentences), static_cast<std::int64_t>(longest)}, at::kLong);
  for (std::size_t i = 0; i < sentences.size(); ++i)
    std::ranges::copy(sentences[i], rows.data_ptr<std::int64_t>() + i * longest);
  return rows;
}

}  // namespace starling
