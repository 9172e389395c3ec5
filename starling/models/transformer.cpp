#include "starling/models/transformer.h"

#include <cmath>
#include <utility>

#include <ATen/Context.h>
#include <ATen/Generator.h>
#include <ATen/ops/all.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "starling/models/recompute.h"

namespace starling {

namespace nn = torch::nn;
using at::Tensor;

namespace {

class Dropout {
 public:
  Dropout(double share, std::optional<at::Generator> generator)
      : share_(share), generator_(std::move(generator)) {}
  Tensor operator()(const Tensor& x) const {
    if (share_ == 0) return x;
    return x * at::empty_like(x).bernoulli_(1 - share_, generator_).div_(1 - share_);
  }
  // The generator that values on this device draw from; none, if they draw nothing.
  std::optional<at::Generator> generator(at::Device device) const {
    if (share_ == 0) return std::nullopt;
    return generator_ ? generator_ : at::globalContext().defaultGenerator(device);
  }

 private:
  const double share_;
  const std::optional<at::Generator> generator_;
};

// Glorot and Bengio 2010.
Tensor glorot(std::int64_t out, std::int64_t in) {
  const double bound = std::sqrt(6.0 / static_cast<double>(in + out));
  return at::empty({out, in}).uniform_(-bound, bound);
}

struct Linear : nn::Module {
  Linear(std::int64_t in, std::int64_t out)
      : weight(register_parameter("weight", glorot(out, in))),
        bias(register_parameter("bias", at::zeros({out}))) {}
  Tensor forward(const Tensor& x) const { return at::linear(x, weight, bias); }
  Tensor weight, bias;
};

struct MultiheadAttention : nn::Module {
  explicit MultiheadAttention(const TransformerOptions& o)
      : width(o.width),
        heads(o.heads),
        in_proj_weight(register_parameter("in_proj_weight", glorot(3 * width, width))),
        in_proj_bias(register_parameter("in_proj_bias", at::zeros({3 * width}))),
        out_proj(register_module("out_proj", std::make_shared<Linear>(width, width))) {}

  // `count` of queries, keys and values from number `first` on: [count, n, heads, t, width / heads]
  Tensor projected(const Tensor& x, std::int64_t first, std::int64_t count) const {
    const Tensor y = at::linear(x, in_proj_weight.narrow(0, first * width, count * width),
                                in_proj_bias.narrow(0, first * width, count * width));
    return y.view({x.size(0), x.size(1), count, heads, width / heads}).permute({2, 0, 3, 1, 4});
  }
  // `seen`: the keys that count; undefined: all.
  Tensor mixed(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& seen,
               bool causal = false) const {
    const std::optional<Tensor> mask = seen.defined() ? std::optional(seen) : std::nullopt;
    const Tensor y =
        at::scaled_dot_product_attention(queries, keys, values, mask, /*dropout_p=*/0, /*is_causal=*/causal);
    return out_proj->forward(y.transpose(1, 2).flatten(2));
  }
  Tensor over_itself(const Tensor& x, const Tensor& seen, bool causal) const {
    const Tensor qkv = projected(x, 0, 3);
    return mixed(qkv[0], qkv[1], qkv[2], seen, causal);
  }

  const std::int64_t width, heads;
  Tensor in_proj_weight, in_proj_bias;
  const std::shared_ptr<Linear> out_proj;
};

nn::LayerNorm norm(const TransformerOptions& o) { return nn::LayerNorm(nn::LayerNormOptions({o.width})); }

struct EncoderLayer : nn::Module {
  explicit EncoderLayer(const TransformerOptions& o)
      : self_attn(register_module("self_attn", std::make_shared<MultiheadAttention>(o))),
        linear1(register_module("linear1", std::make_shared<Linear>(o.width, o.inner))),
        linear2(register_module("linear2", std::make_shared<Linear>(o.inner, o.width))),
        norm1(register_module("norm1", norm(o))),
        norm2(register_module("norm2", norm(o))) {}
  Tensor forward(Tensor x, const Tensor& seen, const Dropout& dropout) {
    x = norm1(x + dropout(self_attn->over_itself(x, seen, /*causal=*/false)));
    return norm2(x + dropout(linear2->forward(at::relu(linear1->forward(x)))));
  }
  const std::shared_ptr<MultiheadAttention> self_attn;
  const std::shared_ptr<Linear> linear1, linear2;
  nn::LayerNorm norm1, norm2;
};

struct DecoderLayer : nn::Module {
  explicit DecoderLayer(const TransformerOptions& o)
      : self_attn(register_module("self_attn", std::make_shared<MultiheadAttention>(o))),
        multihead_attn(register_module("multihead_attn", std::make_shared<MultiheadAttention>(o))),
        linear1(register_module("linear1", std::make_shared<Linear>(o.width, o.inner))),
        linear2(register_module("linear2", std::make_shared<Linear>(o.inner, o.width))),
        norm1(register_module("norm1", norm(o))),
        norm2(register_module("norm2", norm(o))),
        norm3(register_module("norm3", norm(o))) {}
  // `own` and `other`: the outputs of the two attentions, as functions of their input.
  template <class Own, class Other>
  Tensor forward(Tensor x, const Own& own, const Other& other, const Dropout& dropout) {
    x = norm1(x + dropout(own(x)));
    x = norm2(x + dropout(other(x)));
    return norm3(x + dropout(linear2->forward(at::relu(linear1->forward(x)))));
  }
  const std::shared_ptr<MultiheadAttention> self_attn, multihead_attn;
  const std::shared_ptr<Linear> linear1, linear2;
  nn::LayerNorm norm1, norm2, norm3;
};

template <class Layer>
nn::ModuleList layers_of(const TransformerOptions& o) {
  nn::ModuleList layers;
  for (std::int64_t i = 0; i < o.layers; ++i) layers->push_back(std::make_shared<Layer>(o));
  return layers;
}

// "encoder.layers.0" and so on.
std::shared_ptr<nn::Module> around(const nn::ModuleList& layers) {
  auto module = std::make_shared<nn::Module>();
  module->register_module("layers", layers);
  return module;
}

// [t, width], from position `first` on.
Tensor positions(std::int64_t first, std::int64_t count, std::int64_t width) {
  const Tensor rates =
      at::exp(at::arange(0, width, 2, at::kDouble) * (-std::log(10000.0) / static_cast<double>(width)));
  const Tensor angles = at::outer(at::arange(first, first + count, at::kDouble), rates);
  return at::stack({at::sin(angles), at::cos(angles)}, 2).flatten(1);
}

// [n, 1, 1, s]; undefined if there is no padding: attention without a mask is faster.
Tensor seen_in(const Tensor& source) {
  const Tensor seen = source.ne(Transformer::kPadding);
  return seen.all().item<bool>() ? Tensor() : seen.unsqueeze(1).unsqueeze(1);
}

}  // namespace

struct Transformer::Parts {
  explicit Parts(const TransformerOptions& o)
      : options(o),
        embedding(o.vocabulary, o.width),
        encoder(layers_of<EncoderLayer>(o)),
        decoder(layers_of<DecoderLayer>(o)) {
    const torch::NoGradGuard no_gradient;
    embedding->weight.normal_(0, 1 / std::sqrt(static_cast<double>(o.width)));
  }
  // `first`: the position of the first token.
  Tensor embedded(const Tensor& tokens, std::int64_t first, const Dropout& dropout) {
    const Tensor x = embedding(tokens) * std::sqrt(static_cast<double>(options.width));
    return dropout(x + positions(first, tokens.size(1), options.width).to(x.options()));
  }
  Tensor encoded(const Tensor& source, const Tensor& seen, const Dropout& dropout) {
    Tensor x = embedded(source, 0, dropout);
    for (const auto& module : *encoder) {
      auto& layer = *module->as<EncoderLayer>();
      x = through(layer, {x}, dropout, [&layer, seen, dropout](const auto& inputs) {
        return layer.forward(inputs[0], seen, dropout);
      });
    }
    return x;
  }
  // f(inputs), which is the output of this layer.
  Tensor through(nn::Module& layer, const std::vector<Tensor>& inputs, const Dropout& dropout,
                 const Computation& f) const {
    if (!options.recompute) return f(inputs);
    return recomputed(layer, f, inputs, dropout.generator(inputs[0].device()));
  }
  Tensor logits(const Tensor& x) const { return at::linear(x, embedding->weight).to(at::kFloat); }

  const TransformerOptions options;
  nn::Embedding embedding;
  nn::ModuleList encoder, decoder;
};

Transformer::Transformer(const TransformerOptions& options) : parts_(std::make_shared<Parts>(options)) {
  register_module("embedding", parts_->embedding);
  register_module("encoder", around(parts_->encoder));
  register_module("decoder", around(parts_->decoder));
  to(options.type);
}

std::int64_t Transformer::vocabulary() const { return parts_->options.vocabulary; }

Tensor Transformer::forward(const Tensor& source, const Tensor& target,
                            std::optional<at::Generator> generator) {
  Parts& p = *parts_;
  const Dropout dropout(is_training() ? p.options.dropout : 0, std::move(generator));
  const Tensor seen = seen_in(source), memory = p.encoded(source, seen, dropout);
  Tensor x = p.embedded(target, 0, dropout);
  for (const auto& module : *p.decoder) {
    auto& layer = *module->as<DecoderLayer>();
    x = p.through(layer, {x, memory}, dropout, [&layer, seen, dropout](const auto& inputs) {
      const MultiheadAttention &own = *layer.self_attn, &other = *layer.multihead_attn;
      return layer.forward(
          inputs[0], [&](const Tensor& y) { return own.over_itself(y, {}, /*causal=*/true); },
          [&](const Tensor& y) {
            const Tensor keys_values = other.projected(inputs[1], 1, 2);
            return other.mixed(other.projected(y, 0, 1)[0], keys_values[0], keys_values[1], seen);
          },
          dropout);
    });
  }
  return p.logits(x);
}

Tensor Transformer::loss(const Tensor& source, const Tensor& target, double smoothing,
                         at::Reduction::Reduction reduction, std::optional<at::Generator> generator) {
  // The decoder sees the tokens before each one.
  const Tensor before = at::constant_pad_nd(target.narrow(1, 0, target.size(1) - 1), {1, 0}, kEnd);
  return at::cross_entropy_loss(forward(source, before, std::move(generator)).flatten(0, 1), target.flatten(),
                                {}, reduction, kPadding, smoothing);
}

Transformer::Decoding Transformer::decode(const Tensor& source) {
  Parts& p = *parts_;
  Decoding decoding;
  decoding.model_ = &p;
  decoding.seen_ = seen_in(source);
  const Tensor memory = p.encoded(source, decoding.seen_, Dropout(0, std::nullopt));
  for (const auto& layer : *p.decoder) {
    const Tensor keys_values = layer->as<DecoderLayer>()->multihead_attn->projected(memory, 1, 2);
    decoding.layers_.push_back({keys_values[0], keys_values[1], {}, {}});
  }
  return decoding;
}

Tensor Transformer::Decoding::next(const Tensor& tokens) {
  Parts& p = *model_;
  const Dropout none(0, std::nullopt);
  Tensor x = p.embedded(tokens.unsqueeze(1), length_++, none);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto& layer = p.decoder->at<DecoderLayer>(i);
    Layer& kept = layers_[i];
    x = layer.forward(
        x,
        [&](const Tensor& y) {
          const MultiheadAttention& own = *layer.self_attn;
          const Tensor qkv = own.projected(y, 0, 3);
          kept.keys = kept.keys.defined() ? at::cat({kept.keys, qkv[1]}, 2) : qkv[1];
          kept.values = kept.values.defined() ? at::cat({kept.values, qkv[2]}, 2) : qkv[2];
          return own.mixed(qkv[0], kept.keys, kept.values, {});
        },
        [&](const Tensor& y) {
          // The rows of a sentence are queries to the same keys.
          const MultiheadAttention& other = *layer.multihead_attn;
          const Tensor grouped = y.view({kept.source_keys.size(0), -1, y.size(2)});
          return other.mixed(other.projected(grouped, 0, 1)[0], kept.source_keys, kept.source_values, seen_)
              .view(y.sizes());
        },
        none);
  }
  return p.logits(x.squeeze(1));
}

void Transformer::Decoding::select(const Tensor& sentences, const Tensor& rows) {
  if (seen_.defined()) seen_ = seen_.index_select(0, sentences);
  for (Layer& layer : layers_) {
    layer.source_keys = layer.source_keys.index_select(0, sentences);
    layer.source_values = layer.source_values.index_select(0, sentences);
    if (!layer.keys.defined()) continue;
    layer.keys = layer.keys.index_select(0, rows);
    layer.values = layer.values.index_select(0, rows);
  }
}

}  // namespace starling
