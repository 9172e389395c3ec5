#include "starling/models/transformer.h"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include "tests/models/tiny_transformer.h"

namespace starling {
namespace {

using at::Tensor;
using Rows = std::vector<std::vector<double>>;
using Sentence = std::vector<std::int64_t>;

// The Transformer in plain loops, on one pair.
class TransformerLoops {
 public:
  explicit TransformerLoops(const Transformer& model) {
    for (const auto& p : model.named_parameters()) {
      const Tensor values = p.value().detach().to(at::kDouble).contiguous();
      values_[p.key()] = {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
    }
  }

  // The logits behind each token of the target.
  Rows logits(const Sentence& source, const Sentence& target) const {
    Rows memory = embedded(source);
    for (int i = 0; i < kTinyTransformer.layers; ++i) {
      const std::string layer = "encoder.layers." + std::to_string(i) + ".";
      memory = normed(memory, attention(layer + "self_attn.", memory, memory, false), layer + "norm1.");
      memory = normed(memory, feed_forward(layer, memory), layer + "norm2.");
    }
    Rows x = embedded(target);
    for (int i = 0; i < kTinyTransformer.layers; ++i) {
      const std::string layer = "decoder.layers." + std::to_string(i) + ".";
      x = normed(x, attention(layer + "self_attn.", x, x, true), layer + "norm1.");
      x = normed(x, attention(layer + "multihead_attn.", x, memory, false), layer + "norm2.");
      x = normed(x, feed_forward(layer, x), layer + "norm3.");
    }
    return product(x, at("embedding.weight"), std::vector<double>(kTinyTransformer.vocabulary));
  }

 private:
  const std::vector<double>& at(const std::string& name) const { return values_.at(name); }

  Rows embedded(const Sentence& tokens) const {
    const auto& embedding = at("embedding.weight");
    Rows x(tokens.size(), std::vector<double>(kTinyTransformer.width));
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::size_t c = 0; c < x[t].size(); ++c) {
        const double angle =
            static_cast<double>(t) / std::pow(10000, static_cast<double>(c / 2 * 2) / kTinyTransformer.width);
        x[t][c] = std::sqrt(kTinyTransformer.width) *
                      embedding[static_cast<std::size_t>(tokens[t] * kTinyTransformer.width) + c] +
                  (c % 2 == 0 ? std::sin(angle) : std::cos(angle));
      }
    }
    return x;
  }
  // x weight^T + bias; the rows of the weight from `first` on, as many as the bias has.
  static Rows product(const Rows& x, const std::vector<double>& weight, const std::vector<double>& bias,
                      std::size_t first = 0) {
    Rows y(x.size(), bias);
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t o = 0; o < bias.size(); ++o) {
        for (std::size_t i = 0; i < x[t].size(); ++i)
          y[t][o] += x[t][i] * weight[(first + o) * x[t].size() + i];
      }
    }
    return y;
  }
  Rows feed_forward(const std::string& layer, const Rows& x) const {
    Rows y = product(x, at(layer + "linear1.weight"), at(layer + "linear1.bias"));
    for (auto& row : y) {
      for (double& value : row) value = std::max(value, 0.0);
    }
    return product(y, at(layer + "linear2.weight"), at(layer + "linear2.bias"));
  }
  Rows normed(Rows x, const Rows& more, const std::string& name) const {
    for (std::size_t t = 0; t < x.size(); ++t) {
      const auto n = static_cast<double>(x[t].size());
      for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] += more[t][c];
      const double mean = std::accumulate(x[t].begin(), x[t].end(), 0.0) / n;
      double variance = 0;
      for (const double value : x[t]) variance += (value - mean) * (value - mean) / n;
      for (std::size_t c = 0; c < x[t].size(); ++c)
        x[t][c] =
            (x[t][c] - mean) / std::sqrt(variance + 1e-5) * at(name + "weight")[c] + at(name + "bias")[c];
    }
    return x;
  }
  Rows attention(const std::string& name, const Rows& x, const Rows& over, bool causal) const {
    const std::size_t width = kTinyTransformer.width,
                      head = width / static_cast<std::size_t>(kTinyTransformer.heads);
    const auto projected = [&](const Rows& from, std::size_t which) {
      const auto& bias = at(name + "in_proj_bias");
      const auto first = bias.begin() + static_cast<std::ptrdiff_t>(which * width);
      return product(from, at(name + "in_proj_weight"), {first, first + kTinyTransformer.width},
                     which * width);
    };
    const Rows q = projected(x, 0), k = projected(over, 1), v = projected(over, 2);
    Rows y(x.size(), std::vector<double>(width));
    for (std::size_t first = 0; first < width; first += head) {
      for (std::size_t t = 0; t < x.size(); ++t) {
        std::vector<double> weight(causal ? t + 1 : over.size());
        for (std::size_t s = 0; s < weight.size(); ++s) {
          double dot = 0;
          for (std::size_t c = first; c < first + head; ++c) dot += q[t][c] * k[s][c];
          weight[s] = std::exp(dot / std::sqrt(static_cast<double>(head)));
        }
        const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
        for (std::size_t s = 0; s < weight.size(); ++s) {
          for (std::size_t c = first; c < first + head; ++c) y[t][c] += weight[s] / sum * v[s][c];
        }
      }
    }
    return product(y, at(name + "out_proj.weight"), at(name + "out_proj.bias"));
  }

  std::map<std::string, std::vector<double>> values_;
};

TEST(Transformer, IsItsEquationHoweverMuchPaddingThereIs) {
  const auto model = tiny_transformer();
  const std::vector<Sentence> sources{{4, 5, 6, 7, 1}, {9, 1}, {3, 3, 8, 1}},
      targets{{1, 6, 2}, {1, 8, 9, 10, 4}, {1}};
  const Tensor logits = model->forward(padded(sources), padded(targets));
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, 5, kTinyTransformer.vocabulary}));
  const TransformerLoops loops(*model);
  for (std::size_t n = 0; n < sources.size(); ++n) {
    const Rows expected = loops.logits(sources[n], targets[n]);
    for (std::size_t t = 0; t < expected.size(); ++t) {
      for (std::size_t v = 0; v < expected[t].size(); ++v) {
        const auto [row, token, word] =
            std::tuple(static_cast<int>(n), static_cast<int>(t), static_cast<int>(v));
        EXPECT_NEAR(logits[row][token][word].item<double>(), expected[t][v], 1e-5);
      }
    }
  }
}

TEST(Transformer, LossIsTheSmoothedCrossEntropyOfTokensThatAreNoPadding) {
  const auto model = tiny_transformer();
  const std::vector<Sentence> sources{{4, 5, 1}, {9, 1}}, targets{{6, 2, 1}, {8, 9, 10, 4, 1}};
  const Tensor chances =
      model->forward(padded(sources), padded({{1, 6, 2}, {1, 8, 9, 10, 4}})).log_softmax(2);
  for (const double smoothing : {0.0, 0.1}) {
    double sum = 0;
    for (int n = 0; n < 2; ++n) {
      for (std::size_t t = 0; t < targets[static_cast<std::size_t>(n)].size(); ++t) {
        const Tensor row = chances[n][static_cast<int>(t)];
        sum -= (1 - smoothing) * row[targets[static_cast<std::size_t>(n)][t]].item<double>() +
               smoothing * row.mean().item<double>();
      }
    }
    const Tensor source = padded(sources), target = padded(targets);
    EXPECT_NEAR(model->loss(source, target, smoothing).item<double>(), sum / 8, 1e-5);
    EXPECT_NEAR(model->loss(source, target, smoothing, at::Reduction::Sum).item<double>(), sum, 1e-4);
  }
}

TEST(Transformer, CachedDecodingIsTheWholeForwardPass) {
  const auto model = tiny_transformer();
  const c10::AutoGradMode no_gradient(false);
  const Tensor source = padded({{4, 5, 6, 1}, {9, 1}, {2, 7, 1}});
  // Two rows for each sentence.
  const Tensor target = at::randint(2, kTinyTransformer.vocabulary, {6, 5}, at::kLong);
  const Tensor whole = model->forward(source.repeat_interleave(2, 0), target);
  auto decoding = model->decode(source);
  for (int t = 0; t < 3; ++t)
    EXPECT_TRUE(at::allclose(decoding.next(target.select(1, t)), whole.select(1, t), 1e-4, 1e-5)) << t;
  // Goes on with the last and the first sentence, the rows of the last in the other order.
  const Tensor rows = indices({5, 4, 0, 1});
  decoding.select(indices({2, 0}), rows);
  for (int t = 3; t < 5; ++t) {
    const Tensor tokens = target.select(1, t).index_select(0, rows);
    EXPECT_TRUE(at::allclose(decoding.next(tokens), whole.select(1, t).index_select(0, rows), 1e-4, 1e-5))
        << t;
  }
}

TEST(Transformer, DropoutIsOfTrainingAndOfItsGenerator) {
  const auto model = tiny_transformer(0.5);
  const Tensor source = padded({{4, 5, 6, 1}}), target = padded({{1, 8, 9}});
  const auto with = [&](std::uint64_t seed) {
    return model->forward(source, target, at::detail::createCPUGenerator(seed));
  };
  EXPECT_TRUE(at::equal(with(1), with(1)));
  model->train();
  EXPECT_TRUE(at::equal(with(1), with(1)));
  EXPECT_FALSE(at::equal(with(1), with(2)));
  EXPECT_FALSE(at::equal(model->forward(source, target), model->forward(source, target)));
  model->eval();
  EXPECT_TRUE(at::equal(with(1), with(2)));
}

TEST(Transformer, NarrowTypesHaveLogitsInFloat) {
  const Tensor source = padded({{4, 5, 6, 1}, {9, 1}}), target = padded({{1, 8, 9}, {1, 4}});
  const Tensor exact = tiny_transformer()->forward(source, target);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto model = tiny_transformer();
    model->to(type);
    const Tensor logits = model->forward(source, target);
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(logits, exact, 0.1, 0.1)) << type;
  }
}

TEST(Transformer, BaseAndBigHaveAsManyParametersAsThePapers) {
  const auto parameters = [](const TransformerOptions& options) {
    std::int64_t sum = 0;
    for (const Tensor& p : Transformer(options).parameters()) sum += p.numel();
    return sum;
  };
  // The paper rounds to 65 and 213 million.
  EXPECT_EQ(parameters({.type = at::kBFloat16}), 63'082'496);
  EXPECT_EQ(parameters({.width = 1024, .heads = 16, .inner = 4096, .type = at::kBFloat16}), 214'245'376);
}

}  // namespace
}  // namespace starling
