#include "starling/models/gpt2.h"

#include <cmath>

#include <ATen/ops/addmm.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "starling/models/recompute.h"

namespace starling {

namespace {

namespace nn = torch::nn;
using at::Tensor;

constexpr double kDeviation = 0.02;

// x -> x weight + bias
struct Projection : nn::Module {
  Projection(std::int64_t in, std::int64_t out, double deviation)
      : weight(register_parameter("weight", at::empty({in, out}).normal_(0, deviation))),
        bias(register_parameter("bias", at::zeros({out}))) {}
  Tensor forward(const Tensor& x) {
    return at::addmm(bias, x.flatten(0, 1), weight).view({x.size(0), x.size(1), weight.size(1)});
  }
  Tensor weight, bias;
};

struct Attention : nn::Module {
  Attention(const Gpt2Options& o, double last)
      : heads(o.heads),
        c_attn(register_module("c_attn", std::make_shared<Projection>(o.width, 3 * o.width, kDeviation))),
        c_proj(register_module("c_proj", std::make_shared<Projection>(o.width, o.width, last))) {}
  // `cached`: keys and values of earlier tokens, `past` of them, with room for these.
  Tensor forward(const Tensor& x, const Tensor& cached, std::int64_t past) {
    const std::int64_t n = x.size(0), t = x.size(1), width = x.size(2);
    // [3, n, heads, t, width / heads]
    const Tensor qkv = c_attn->forward(x).view({n, t, 3, heads, width / heads}).permute({2, 0, 3, 1, 4});
    Tensor mixed;
    if (cached.defined()) {
      cached.narrow(3, past, t).copy_(qkv.narrow(0, 1, 2));
      const Tensor all = cached.narrow(3, 0, past + t);
      const Tensor seen = at::ones({t, past + t}, at::device(x.device()).dtype(at::kBool)).tril(past);
      mixed = at::scaled_dot_product_attention(qkv[0], all[0], all[1], seen);
    } else {
      mixed =
          at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, /*dropout_p=*/0, /*is_causal=*/true);
    }
    return c_proj->forward(mixed.transpose(1, 2).reshape({n, t, width}));
  }
  const std::int64_t heads;
  const std::shared_ptr<Projection> c_attn, c_proj;
};

struct Mlp : nn::Module {
  Mlp(std::int64_t width, double last)
      : c_fc(register_module("c_fc", std::make_shared<Projection>(width, 4 * width, kDeviation))),
        c_proj(register_module("c_proj", std::make_shared<Projection>(4 * width, width, last))) {}
  Tensor forward(const Tensor& x) { return c_proj->forward(at::gelu(c_fc->forward(x), "tanh")); }
  const std::shared_ptr<Projection> c_fc, c_proj;
};

struct Layer : nn::Module {
  Layer(const Gpt2Options& o, double last)
      : ln_1(register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({o.width})))),
        attn(register_module("attn", std::make_shared<Attention>(o, last))),
        ln_2(register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({o.width})))),
        mlp(register_module("mlp", std::make_shared<Mlp>(o.width, last))) {}
  Tensor forward(Tensor x, const Tensor& cached, std::int64_t past) {
    x = x + attn->forward(ln_1(x), cached, past);
    return x + mlp->forward(ln_2(x));
  }
  nn::LayerNorm ln_1;
  const std::shared_ptr<Attention> attn;
  nn::LayerNorm ln_2;
  const std::shared_ptr<Mlp> mlp;
};

}  // namespace

struct Gpt2::Decoder : nn::Module {
  explicit Decoder(const Gpt2Options& o)
      : wte(register_module("wte", nn::Embedding(o.vocabulary, o.width))),
        wpe(register_module("wpe", nn::Embedding(o.context, o.width))),
        h(register_module("h", nn::ModuleList())),
        ln_f(register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({o.width})))) {
    const torch::NoGradGuard no_gradient;
    wte->weight.normal_(0, kDeviation);
    wpe->weight.normal_(0, kDeviation);
    for (std::int64_t i = 0; i < o.layers; ++i)
      h->push_back(Layer(o, kDeviation / std::sqrt(2.0 * static_cast<double>(o.layers))));
  }
  nn::Embedding wte, wpe;
  nn::ModuleList h;
  nn::LayerNorm ln_f;
};

Gpt2::Gpt2(const Gpt2Options& options)
    : options_(options), decoder_(register_module("transformer", std::make_shared<Decoder>(options))) {
  to(options.type);
}

Tensor Gpt2::forward(const Tensor& tokens) { return logits(tokens, nullptr); }

Tensor Gpt2::forward(const Tensor& tokens, Gpt2Cache& cache) {
  const torch::NoGradGuard no_gradient;
  if (cache.layers.empty()) {
    const Gpt2Options& o = options_;
    const auto like = decoder_->wte->weight.options();
    for (std::int64_t i = 0; i < o.layers; ++i)
      cache.layers.push_back(at::empty({2, tokens.size(0), o.heads, o.context, o.width / o.heads}, like));
  }
  const Tensor result = logits(tokens, &cache);
  cache.size += tokens.size(1);
  return result;
}

Tensor Gpt2::logits(const Tensor& tokens, Gpt2Cache* cache) {
  Decoder& d = *decoder_;
  const std::int64_t past = cache != nullptr ? cache->size : 0;
  Tensor x = d.wte(tokens) + d.wpe->weight.narrow(0, past, tokens.size(1));
  for (std::size_t i = 0; i < d.h->size(); ++i) {
    auto& layer = *d.h[i]->as<Layer>();
    if (cache != nullptr) {
      x = layer.forward(x, cache->layers[i], past);
    } else if (options_.recompute) {
      x = recomputed(layer, [&layer](const auto& inputs) { return layer.forward(inputs[0], {}, 0); }, {x});
    } else {
      x = layer.forward(x, {}, 0);
    }
  }
  return at::linear(d.ln_f(x), d.wte->weight).to(at::kFloat);
}

Tensor Gpt2::loss(const Tensor& tokens, const Tensor& targets) {
  return at::cross_entropy_loss(forward(tokens).flatten(0, 1), targets.flatten());
}

std::string Gpt2::own_name(const std::string& published) const {
  constexpr std::string_view kPrefix = "transformer.";
  for (const std::string_view mask : {".attn.bias", ".attn.masked_bias"}) {
    if (published.ends_with(mask)) return "";
  }
  return published.starts_with(kPrefix) ? published : std::string(kPrefix) + published;
}

}  // namespace starling
