// GPT-2 (Radford et al. 2019): a decoder of pre-norm layers, with learnt positions.
//
//   x = wte[tokens] + wpe[positions]
//   each layer:  x += attention(ln_1(x)),  x += mlp(ln_2(x))
//   logits = ln_f(x) wte^T          the output matrix is the embedding
//
// attention is causal, with `heads` heads; mlp is width -> 4 width -> width with GELU (its tanh
// form) in between. There is no dropout. Parameters are named and laid out as in Hugging Face's
// GPT2LMHeadModel, so safetensors files can be exchanged. A matrix of a projection is [in, out].
// The files that OpenAI's weights are published in there have names without "transformer.", and the
// causal masks beside the parameters.
//
//            layers   heads   width   parameters (vocabulary 50257, context 1024)
//   small        12      12     768   124,439,808
//   medium       24      16    1024   354,823,168
//   large        36      20    1280   774,030,080
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "starling/models/published.h"

namespace starling {

struct Gpt2Options {
  std::int64_t vocabulary = 50257;  // tokens
  std::int64_t context = 1024;      // the most tokens in a sequence
  std::int64_t width = 768;         // a multiple of heads
  std::int64_t heads = 12;
  std::int64_t layers = 12;
  at::ScalarType type = at::kFloat;  // of parameters and activations
  bool recompute = false;            // the layers' activations in the backward pass (recompute.h)
};

// The keys and values of the tokens that a model has read, so that it goes on from there.
struct Gpt2Cache {
  std::vector<at::Tensor> layers;  // [2, n, heads, context, width / heads]
  std::int64_t size = 0;           // tokens
};

class Gpt2 final : public torch::nn::Module, public Published {
 public:
  // Draws the weights from torch's global generator: N(0, 0.02^2); projections that end on x have
  // 1 / sqrt(2 layers) of it; biases are 0.
  explicit Gpt2(const Gpt2Options& options);

  // int64 [n, t], t <= context -> float [n, t, vocabulary]: of the token after each one.
  at::Tensor forward(const at::Tensor& tokens);
  // The same for the tokens behind those in the cache, which are added to it. An empty cache fits
  // any n; together at most `context` tokens. Without gradient.
  at::Tensor forward(const at::Tensor& tokens, Gpt2Cache& cache);
  const Gpt2Options& options() const { return options_; }
  // The mean cross entropy, in nats, of the targets, int64 [n, t].
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);
  std::string own_name(const std::string& published) const override;

 private:
  at::Tensor logits(const at::Tensor& tokens, Gpt2Cache* cache);

  struct Decoder;
  const Gpt2Options options_;
  const std::shared_ptr<Decoder> decoder_;
};

}  // namespace starling
