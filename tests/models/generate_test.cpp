#include "starling/models/generate.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/models/tiny_gpt2.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using Text = std::vector<std::int64_t>;

class Generate : public testing::Test {
 protected:
  Generate() { model_.eval(); }
  // Behind the last of these tokens.
  at::Tensor logits(const Text& text) {
    const torch::NoGradGuard no_gradient;
    return model_.forward(at::tensor(text, at::kLong).unsqueeze(0))[0][-1];
  }

  const std::shared_ptr<Gpt2> tiny_ = testing_models::tiny();
  Gpt2& model_ = *tiny_;
};

TEST_F(Generate, WithoutTemperatureEachTokenIsTheLikeliest) {
  Text text{4, 9};
  const Text tokens = generate(model_, text, 4, {.temperature = 0});
  ASSERT_EQ(tokens.size(), 4U);
  for (const std::int64_t token : tokens) {
    EXPECT_EQ(token, logits(text).argmax().item<std::int64_t>());
    text.push_back(token);
  }
  EXPECT_EQ(generate(model_, {4, 9}, 4, {.temperature = 5, .top_k = 1}), tokens);
}

TEST_F(Generate, AFullContextBeginsAgainWithItsLaterHalf) {
  Text text{4, 9, 1, 0, 7, 3, 5, 2};  // longer than the context
  const Text tokens = generate(model_, text, 9, {.temperature = 0});
  ASSERT_EQ(tokens.size(), 9U);
  std::size_t begin = 2;
  for (const std::int64_t token : tokens) {
    if (text.size() - begin > 6) begin = text.size() - 3;
    EXPECT_EQ(token, logits({text.begin() + static_cast<std::ptrdiff_t>(begin), text.end()})
                         .argmax()
                         .item<std::int64_t>());
    text.push_back(token);
  }
}

TEST_F(Generate, TokensAreDrawnByTheirChances) {
  constexpr int kDraws = 1500;
  std::map<std::int64_t, int> all, few;
  for (std::uint64_t seed = 0; seed < kDraws; ++seed) {
    ++all[generate(model_, {4, 9}, 1, {.temperature = 2, .seed = seed})[0]];
    ++few[generate(model_, {4, 9}, 1, {.temperature = 2, .top_k = 3, .seed = seed})[0]];
  }
  const auto chances = at::softmax(logits({4, 9}) / 2, 0);
  const auto [best, tokens] = chances.topk(3);
  EXPECT_EQ(few.size(), 3U);
  const auto expect = [&](int count, double chance) {
    EXPECT_NEAR(count, kDraws * chance, 5 * std::sqrt(kDraws * chance * (1 - chance)) + 1);
  };
  for (std::int64_t token = 0; token < testing_models::kTiny.vocabulary; ++token)
    expect(all[token], chances[token].item<double>());
  for (int i = 0; i < 3; ++i)
    expect(few[tokens[i].item<std::int64_t>()], (best[i] / best.sum()).item<double>());
}

TEST_F(Generate, TheSeedDecidesAndTheEndStops) {
  const Text tokens = generate(model_, {4, 9}, 20, {.seed = 7});
  EXPECT_EQ(generate(model_, {4, 9}, 20, {.seed = 7}), tokens);
  EXPECT_NE(generate(model_, {4, 9}, 20, {.seed = 8}), tokens);
  const std::int64_t end = tokens[5];
  const Text before(tokens.begin(), std::ranges::find(tokens, end));
  EXPECT_EQ(generate(model_, {4, 9}, 20, {.seed = 7, .end = end}), before);
  EXPECT_EQ(refusal<UsageError>([&] { generate(model_, {}, 1, {}); }), "generate: the prompt has no token");
}

}  // namespace
}  // namespace starling
