#include "starling/models/gpt2.h"

#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include "tests/models/tiny_gpt2.h"

namespace starling {
namespace {

using at::Tensor;
using Vector = std::vector<double>;

using testing_models::kTiny;
using testing_models::tiny;

// GPT-2 in plain loops, on one sequence.
class Loops {
 public:
  explicit Loops(const Gpt2& model) {
    for (const auto& p : model.named_parameters()) {
      const Tensor values = p.value().detach().to(at::kDouble).contiguous();
      values_[p.key()] = {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
    }
  }

  // The logits behind each token.
  std::vector<Vector> logits(const std::vector<std::int64_t>& tokens) const {
    const std::size_t width = kTiny.width;
    std::vector<Vector> x(tokens.size(), Vector(width));
    const Vector &wte = at("wte.weight"), &wpe = at("wpe.weight");
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      for (std::size_t c = 0; c < width; ++c)
        x[t][c] = wte[static_cast<std::size_t>(tokens[t]) * width + c] + wpe[t * width + c];
    }
    for (int layer = 0; layer < kTiny.layers; ++layer) {
      const std::string h = "h." + std::to_string(layer) + ".";
      add(x, attention(h + "attn.", normed(x, h + "ln_1.")));
      add(x, mlp(h + "mlp.", normed(x, h + "ln_2.")));
    }
    x = normed(x, "ln_f.");
    std::vector<Vector> logits(x.size(), Vector(kTiny.vocabulary));
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t v = 0; v < logits[t].size(); ++v) {
        for (std::size_t c = 0; c < width; ++c) logits[t][v] += x[t][c] * wte[v * width + c];
      }
    }
    return logits;
  }

 private:
  const Vector& at(const std::string& name) const { return values_.at("transformer." + name); }

  static void add(std::vector<Vector>& x, const std::vector<Vector>& y) {
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t c = 0; c < x[t].size(); ++c) x[t][c] += y[t][c];
    }
  }
  std::vector<Vector> normed(std::vector<Vector> x, const std::string& name) const {
    for (Vector& row : x) {
      const auto n = static_cast<double>(row.size());
      const double mean = std::accumulate(row.begin(), row.end(), 0.0) / n;
      double variance = 0;
      for (const double value : row) variance += (value - mean) * (value - mean) / n;
      for (std::size_t c = 0; c < row.size(); ++c)
        row[c] = (row[c] - mean) / std::sqrt(variance + 1e-5) * at(name + "weight")[c] + at(name + "bias")[c];
    }
    return x;
  }
  std::vector<Vector> projected(const std::vector<Vector>& x, const std::string& name) const {
    const Vector &weight = at(name + "weight"), &bias = at(name + "bias");
    std::vector<Vector> y(x.size(), bias);
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t i = 0; i < x[t].size(); ++i) {
        for (std::size_t o = 0; o < bias.size(); ++o) y[t][o] += x[t][i] * weight[i * bias.size() + o];
      }
    }
    return y;
  }
  std::vector<Vector> attention(const std::string& name, const std::vector<Vector>& x) const {
    const std::size_t width = kTiny.width, head = width / static_cast<std::size_t>(kTiny.heads);
    const std::vector<Vector> qkv = projected(x, name + "c_attn.");
    std::vector<Vector> y(x.size(), Vector(width));
    for (std::size_t first = 0; first < width; first += head) {
      for (std::size_t t = 0; t < x.size(); ++t) {
        Vector weight(t + 1);
        for (std::size_t s = 0; s <= t; ++s) {
          double product = 0;
          for (std::size_t c = first; c < first + head; ++c) product += qkv[t][c] * qkv[s][width + c];
          weight[s] = std::exp(product / std::sqrt(static_cast<double>(head)));
        }
        const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t c = first; c < first + head; ++c)
            y[t][c] += weight[s] / sum * qkv[s][2 * width + c];
        }
      }
    }
    return projected(y, name + "c_proj.");
  }
  std::vector<Vector> mlp(const std::string& name, const std::vector<Vector>& x) const {
    std::vector<Vector> y = projected(x, name + "c_fc.");
    for (Vector& row : y) {
      for (double& u : row)
        u *= 0.5 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (u + 0.044715 * u * u * u)));
    }
    return projected(y, name + "c_proj.");
  }

  std::map<std::string, Vector> values_;
};

TEST(Gpt2, IsItsEquation) {
  const auto model = tiny();
  const Tensor tokens = at::randint(kTiny.vocabulary, {3, kTiny.context}, at::kLong);
  const Tensor logits = model->forward(tokens);
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, kTiny.context, kTiny.vocabulary}));
  const Loops loops(*model);
  for (int n = 0; n < 3; ++n) {
    const auto* row = tokens[n].data_ptr<std::int64_t>();
    const auto expected = loops.logits({row, row + kTiny.context});
    for (int t = 0; t < kTiny.context; ++t) {
      for (int v = 0; v < kTiny.vocabulary; ++v) {
        EXPECT_NEAR(logits[n][t][v].item<double>(),
                    expected[static_cast<std::size_t>(t)][static_cast<std::size_t>(v)], 1e-4);
      }
    }
  }
}

TEST(Gpt2, LossIsTheMeanCrossEntropyInNats) {
  const auto model = tiny();
  const Tensor text = at::randint(kTiny.vocabulary, {2, kTiny.context + 1}, at::kLong);
  const Tensor tokens = text.narrow(1, 0, kTiny.context), targets = text.narrow(1, 1, kTiny.context);
  const Tensor chosen = model->forward(tokens).log_softmax(2).gather(2, targets.unsqueeze(2));
  EXPECT_NEAR(model->loss(tokens, targets).item<double>(), -chosen.mean().item<double>(), 1e-5);
}

TEST(Gpt2, AShorterSequenceHasTheFirstLogitsOfALongerOne) {
  const auto model = tiny();
  const Tensor tokens = at::arange(kTiny.context).unsqueeze(0);
  EXPECT_TRUE(at::allclose(model->forward(tokens.narrow(1, 0, 4)), model->forward(tokens).narrow(1, 0, 4),
                           1e-4, 1e-5));
}

TEST(Gpt2, WhatIsInTheCacheNeedNotBeReadAgain) {
  const auto model = tiny();
  const Tensor tokens = at::randint(kTiny.vocabulary, {2, kTiny.context}, at::kLong);
  const Tensor whole = model->forward(tokens);
  Gpt2Cache cache;
  for (const auto& [first, count] : {std::pair{0, 3}, {3, 1}, {4, 2}}) {
    const Tensor logits = model->forward(tokens.narrow(1, first, count), cache);
    EXPECT_FALSE(logits.requires_grad());
    EXPECT_TRUE(at::allclose(logits, whole.narrow(1, first, count), 1e-4, 1e-5)) << first;
    EXPECT_EQ(cache.size, first + count);
  }
}

TEST(Gpt2, NarrowTypesHaveLogitsInFloat) {
  const Tensor tokens = at::arange(kTiny.context).unsqueeze(0);
  const Tensor exact = tiny()->forward(tokens);
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const auto model = tiny();
    model->to(type);
    const Tensor logits = model->forward(tokens);
    EXPECT_EQ(logits.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::allclose(logits, exact, 0.1, 0.1)) << type;
  }
}

TEST(Gpt2, SmallHasAsManyParametersAsGpt2) {
  const Gpt2 small({.type = at::kBFloat16});
  EXPECT_EQ(small.parameters()[0].scalar_type(), at::kBFloat16);
  std::int64_t parameters = 0;
  for (const Tensor& p : small.parameters()) parameters += p.numel();
  EXPECT_EQ(parameters, 124'439'808);
}

}  // namespace
}  // namespace starling
