#include "starling/models/bleu.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace starling {
namespace {

using Sentence = std::vector<std::int64_t>;
using Counts = std::vector<std::int64_t>;

Counts counted(const std::vector<std::pair<Sentence, Sentence>>& pairs) {
  Counts counts(kBleuCounts);
  for (const auto& [translation, reference] : pairs) count_bleu(translation, reference, counts);
  return counts;
}

TEST(Bleu, CountsAnNGramAsOftenAsTheReferenceHasIt) {
  // The paper's example: "the the the ..." beside a sentence with two of them.
  const Counts counts = counted({{{7, 7, 7, 7, 7, 7, 7}, {7, 2, 3, 4, 7, 5}}});
  EXPECT_EQ(counts, (Counts{2, 0, 0, 0, 7, 6, 5, 4, 7, 6}));
  EXPECT_EQ(bleu(counts), 0);
}

TEST(Bleu, IsTheGeometricMeanOfThePrecisions) {
  const Counts counts = counted({{{2, 3, 4, 5, 6, 9}, {2, 3, 4, 5, 6, 7}}, {{5, 6}, {5, 6}}});
  EXPECT_EQ(counts, (Counts{7, 5, 3, 2, 8, 6, 4, 3, 8, 8}));
  EXPECT_NEAR(bleu(counts), std::pow(7.0 / 8 * 5 / 6 * 3 / 4 * 2 / 3, 0.25), 1e-12);
}

TEST(Bleu, AShortTranslationPaysAndALongOneDoesNot) {
  EXPECT_NEAR(bleu(counted({{{2, 3, 4, 5}, {2, 3, 4, 5, 6, 7}}})), std::exp(1 - 6.0 / 4), 1e-12);
  const Counts longer = counted({{{2, 3, 4, 5, 6}, {2, 3, 4, 5}}});
  EXPECT_NEAR(bleu(longer), std::pow(4.0 / 5 * 3 / 4 * 2 / 3 * 1 / 2, 0.25), 1e-12);
  EXPECT_EQ(bleu(counted({{{2, 3, 4, 5}, {2, 3, 4, 5}}})), 1);
  EXPECT_EQ(bleu(counted({{{}, {2, 3}}})), 0);
}

}  // namespace
}  // namespace starling
