// The Transformer (Vaswani et al. 2017): an encoder of the source sentence, and a decoder that
// predicts the next token of the target sentence.
//
//   x = sqrt(width) embedding[tokens] + positions
//   each layer:  x = norm(x + sublayer(x))      post-norm, as in the paper
//
//   encoder   attention, feed-forward
//   decoder   causal attention, attention over the encoder's output, feed-forward
//   logits    x embedding^T                     source, target and output share one matrix
//
// positions(t, 2i) = sin(t / 10000^(2i / width)), positions(t, 2i+1) = cos of the same. The
// feed-forward network is width -> inner -> width with ReLU in between. Dropout acts on the output
// of each sublayer and on the sum of embeddings and positions. Parameters have the names and
// layouts of torch.nn.TransformerEncoder and TransformerDecoder.
//
//          layers   heads   width   inner   dropout   parameters (vocabulary 37000)
//   base        6       8     512    2048       0.1    63,082,496
//   big         6      16    1024    4096       0.3   214,245,376
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Reduction.h>
#include <torch/nn/module.h>

namespace starling {

struct TransformerOptions {
  std::int64_t vocabulary = 37000;  // tokens
  std::int64_t width = 512;         // a multiple of heads, and even
  std::int64_t heads = 8;
  std::int64_t layers = 6;    // of the encoder, and as many of the decoder
  std::int64_t inner = 2048;  // width within the feed-forward networks
  double dropout = 0.1;
  at::ScalarType type = at::kFloat;  // of parameters and activations
  bool recompute = false;            // the layers' activations in the backward pass (recompute.h)
};

class Transformer final : public torch::nn::Module {
  struct Parts;

 public:
  static constexpr std::int64_t kPadding = 0;  // behind the end of a shorter sentence in a batch
  static constexpr std::int64_t kEnd = 1;      // ends each sentence; the decoder begins with it

  // Draws the weights from torch's global generator: matrices by Glorot and Bengio's uniform
  // distribution, embeddings from N(0, 1 / width); biases are 0.
  explicit Transformer(const TransformerOptions& options);

  std::int64_t vocabulary() const;

  // int64 [n, s] and [n, t] -> float [n, t, vocabulary]: of the token after each one of `target`.
  // In training mode dropout draws from `generator`, without one from torch's global generator.
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target,
                     std::optional<at::Generator> generator = std::nullopt);
  // The mean cross entropy, in nats, of the tokens of `target`, int64 [n, t], that are no padding;
  // or its sum. With `smoothing`, that share of a token's probability is spread over all tokens.
  at::Tensor loss(const at::Tensor& source, const at::Tensor& target, double smoothing = 0,
                  at::Reduction::Reduction reduction = at::Reduction::Mean,
                  std::optional<at::Generator> generator = std::nullopt);

  // The decoder on its way through target sentences, one token at a time. It keeps keys and values
  // of earlier tokens. Each sentence of the source has as many rows as the others: its hypotheses.
  class Decoding {
   public:
    // The logits, float [rows, vocabulary], behind these tokens, int64 [rows].
    at::Tensor next(const at::Tensor& tokens);
    // Goes on with these sentences and rows only, int64, in this order: row r becomes row i, if
    // rows[i] = r. The rows of a sentence stay together.
    void select(const at::Tensor& sentences, const at::Tensor& rows);

   private:
    friend class Transformer;
    struct Layer {
      at::Tensor source_keys, source_values;  // [sentences, heads, s, width / heads]
      at::Tensor keys, values;                // [rows, heads, tokens, width / heads]
    };
    Parts* model_ = nullptr;
    at::Tensor seen_;  // bool [sentences, 1, 1, s]: not padding. Undefined: there is none
    std::vector<Layer> layers_;
    std::int64_t length_ = 0;
  };
  // Begins target sentences. Use it in eval mode. The model must outlive it.
  Decoding decode(const at::Tensor& source);

 private:
  const std::shared_ptr<Parts> parts_;
};

}  // namespace starling
