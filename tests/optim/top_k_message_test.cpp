// The message of the largest values, beside plain loops. No message writes beyond its vector.
#include "starling/optim/schemes/top_k_message.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include <gmock/gmock.h>

namespace starling {
namespace {

using MessagePart = TopKMessage::Part;
using testing::Each;

std::vector<float> normal_values(std::size_t n, unsigned seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all(n);
  std::ranges::generate(all, [&] { return normal(random); });
  return all;
}

std::vector<float> top_k_message(const TopKMessage& form, std::span<const float> v, std::span<const float> x,
                                 std::uint64_t turn) {
  std::vector<float> message(form.size(), 1e30F);  // what was there before must not matter
  form.write(v, x, turn, message);
  return message;
}

std::vector<float> chosen_by(const TopKMessage& form, std::span<const float> message, std::size_t n) {
  std::vector<float> chosen(n);
  form.add(message, 1, chosen);
  return chosen;
}

// Lengths that are no multiples of anything.
const std::vector<MessagePart> kMessageParts{
    {.length = 4099}, {.length = 1}, {.length = 130, .chunk = 20}, {.length = 61}};
constexpr std::size_t kMessageValues = 4099 + 1 + 130 + 61;

TEST(TopKMessage, HasTheLargestValuesOfEachChunkAsTheyAre) {
  const std::vector<float> v = normal_values(kMessageValues, 1);
  for (const int one_in : {2, 7, 64}) {
    const TopKMessage form(kMessageParts, one_in, false);
    const auto chosen = chosen_by(form, top_k_message(form, v, v, 0), kMessageValues);
    std::size_t begin = 0, all = 0;
    for (const MessagePart& part : kMessageParts) {
      for (std::int64_t at = 0; at < part.length; at += part.chunk) {
        const auto length = static_cast<std::size_t>(std::min(part.chunk, part.length - at));
        std::vector<std::size_t> order(length);
        std::iota(order.begin(), order.end(), begin);
        std::ranges::stable_sort(order, std::greater(), [&](std::size_t c) { return std::abs(v[c]); });
        const std::size_t k =
            (length + static_cast<std::size_t>(one_in) - 1) / static_cast<std::size_t>(one_in);
        for (std::size_t i = 0; i < length; ++i)
          EXPECT_EQ(chosen[order[i]], i < k ? v[order[i]] : 0) << one_in << ' ' << order[i];
        begin += length, all += k;
      }
    }
    const std::size_t turns = 8 * static_cast<std::size_t>(one_in),
                      sample = (kMessageValues + turns - 1) / turns;
    EXPECT_EQ(form.size(), sample + all + (all + 1) / 2);
  }
}

TEST(TopKMessage, OfEqualValuesHasTheFirst) {
  const TopKMessage form(std::vector<MessagePart>{{.length = 9}}, 3, false);
  const std::vector<float> v{1, -1, 1, 1, -1, 2, 1, 1, 1};
  EXPECT_EQ(chosen_by(form, top_k_message(form, v, v, 0), 9),
            (std::vector<float>{1, -1, 0, 0, 0, 2, 0, 0, 0}));
}

// The bins of the chosen values and their means, in double.
TEST(TopKMessage, HasFourLevelsOfEachPartOfMoreThanFourValues) {
  constexpr int kOneIn = 10;
  const std::vector<float> v = normal_values(5000, 2);
  const std::vector<MessagePart> parts{{.length = 4990}, {.length = 10}};
  const TopKMessage form(parts, kOneIn, true), as_they_are(parts, kOneIn, false);
  const auto exact = chosen_by(as_they_are, top_k_message(as_they_are, v, v, 0), 5000);
  const auto levels = chosen_by(form, top_k_message(form, v, v, 0), 5000);
  double sum = 0, squares = 0;
  const double n = 410 + 90;  // of 4096 and of 894
  for (std::size_t c = 0; c < 4990; ++c) sum += exact[c];
  for (std::size_t c = 0; c < 4990; ++c) squares += exact[c] == 0 ? 0 : std::pow(exact[c] - sum / n, 2);
  const double width = 6 * std::sqrt(squares / (n - 1)) / 4;
  std::map<int, std::vector<double>> bins;
  const auto bin = [&](float value) {
    return static_cast<int>(std::clamp(std::round((value - sum / n) / width), -2.0, 1.0));
  };
  for (std::size_t c = 0; c < 4990; ++c) {
    if (exact[c] != 0) bins[bin(exact[c])].push_back(exact[c]);
  }
  EXPECT_GE(bins.size(), 3U);
  for (std::size_t c = 0; c < 4990; ++c) {
    if (exact[c] == 0) {
      EXPECT_EQ(levels[c], 0) << c;
      continue;
    }
    const auto& all = bins[bin(exact[c])];
    EXPECT_NEAR(levels[c], std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size()),
                1e-6);
  }
  // One value is its own level.
  for (std::size_t c = 4990; c < 5000; ++c) EXPECT_EQ(levels[c], exact[c]);
  EXPECT_EQ(form.size(), (5000 + 79) / 80 + 4 + 1 + (501 + 1) / 2);
}

TEST(TopKMessage, SamplesEachValueOnceInItsTurns) {
  const std::vector<float> x = normal_values(kMessageValues, 3), y = normal_values(kMessageValues, 4);
  const TopKMessage form(kMessageParts, 7, true);
  EXPECT_EQ(form.turns(), 56U);
  std::vector<float> together = x;
  for (std::uint64_t turn = 0; turn < form.turns(); ++turn) {
    const std::vector<float> before = together;
    form.mix_sample(top_k_message(form, y, y, turn), top_k_message(form, y, x, turn), 1, turn, together);
    for (std::size_t c = 0; c < kMessageValues; ++c) {
      if (c % 56 != turn) {
        EXPECT_EQ(together[c], before[c]);
      }
    }
  }
  for (std::size_t c = 0; c < kMessageValues; ++c) EXPECT_NEAR(together[c], y[c], 1e-6);
}

TEST(TopKMessage, IsFiniteAndOfAnyBitsHarmless) {
  const std::vector<float> v = normal_values(kMessageValues, 5);
  for (const bool in_levels : {false, true}) {
    const TopKMessage form(kMessageParts, 3, in_levels);
    EXPECT_THAT(top_k_message(form, v, v, 5),
                Each(testing::Truly([](float one) { return std::isfinite(one); })));
    std::mt19937 random(6);
    std::vector<float> hostile(form.size());
    for (int run = 0; run < 20; ++run) {
      std::ranges::generate(hostile,
                            [&] { return std::bit_cast<float>(static_cast<std::uint32_t>(random())); });
      constexpr float kGuard = 12345;
      std::vector<float> guarded(kMessageValues + 8192, kGuard);
      form.add(hostile, 1, std::span(guarded).subspan(4096, kMessageValues));
      for (std::size_t c = 0; c < 4096; ++c) {
        ASSERT_EQ(guarded[c], kGuard);
        ASSERT_EQ(guarded[4096 + kMessageValues + c], kGuard);
      }
    }
  }
}

TEST(TopKMessage, OfAllValuesIsBothVectors) {
  const std::vector<float> v = normal_values(kMessageValues, 7), x = normal_values(kMessageValues, 8);
  const TopKMessage form(kMessageParts, 1, true);
  EXPECT_EQ(form.size(), 2 * kMessageValues);
  EXPECT_EQ(form.turns(), 1U);
  const auto message = top_k_message(form, v, x, 0);
  EXPECT_EQ(chosen_by(form, message, kMessageValues), v);
  std::vector<float> mixed = v;
  form.mix_sample(message, top_k_message(form, v, v, 0), 0.5F, 0, mixed);
  for (std::size_t c = 0; c < kMessageValues; ++c) EXPECT_EQ(mixed[c], v[c] + 0.5F * (x[c] - v[c]));
}

}  // namespace
}  // namespace starling
