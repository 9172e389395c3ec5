#include "starling/models/beam_search.h"

#include <cmath>
#include <limits>
#include <set>

#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include "tests/models/tiny_transformer.h"

namespace starling {
namespace {

using Sentence = std::vector<std::int64_t>;
constexpr std::int64_t kEnd = Transformer::kEnd;

const std::vector<Sentence> kSources{{4, 2, 3, 2, 1}, {3, 1}, {2, 4, 1}, {3, 3, 3, 2, 4, 4, 1}};

// log P of each token behind this beginning, by a whole forward pass.
at::Tensor chances(Transformer& model, const Sentence& source, const Sentence& beginning) {
  const c10::AutoGradMode no_gradient(false);
  Sentence target{kEnd};
  target.insert(target.end(), beginning.begin(), beginning.end());
  return model.forward(padded({source}), padded({target}))[0][-1].log_softmax(0);
}

Sentence greedy(Transformer& model, const Sentence& source, std::size_t longest) {
  Sentence target;
  while (target.size() < longest) {
    const at::Tensor row = chances(model, source, target);
    const std::int64_t token = row.narrow(0, 1, row.size(0) - 1).argmax().item<std::int64_t>() + 1;
    if (token == kEnd) break;
    target.push_back(token);
  }
  return target;
}

// The best of all translations of at most `longest` tokens.
struct BruteForce {
  Transformer& model;
  Sentence source;
  std::size_t longest;
  double alpha;
  Sentence best{};
  double best_score = -std::numeric_limits<double>::infinity();

  void search(const Sentence& beginning = {}, double score = 0) {
    const at::Tensor row = chances(model, source, beginning);
    const double ended = (score + row[kEnd].item<double>()) /
                         std::pow((6.0 + static_cast<double>(beginning.size())) / 6, alpha);
    if (ended > best_score) {
      best_score = ended;
      best = beginning;
    }
    if (beginning.size() == longest) return;
    for (std::int64_t token = kEnd + 1; token < row.size(0); ++token) {
      Sentence longer = beginning;
      longer.push_back(token);
      search(longer, score + row[token].item<double>());
    }
  }
};

TEST(BeamSearch, OneBeamIsGreedy) {
  const auto model = tiny_transformer();
  const std::vector<Sentence> found =
      translate(*model, padded(kSources), {.beams = 1, .alpha = 0.6, .longer = 4});
  std::size_t longest = 0;
  for (std::size_t i = 0; i < kSources.size(); ++i) {
    EXPECT_EQ(found[i], greedy(*model, kSources[i], kSources[i].size() - 1 + 4)) << i;
    longest = std::max(longest, found[i].size());
  }
  EXPECT_GT(longest, 2U);
}

TEST(BeamSearch, AllBeamsAreTheBestOfAllTranslations) {
  // More beams than hypotheses: 3 tokens besides padding and the end, at most 3 of them.
  const Sentence source{4, 2, 3, 1};
  std::set<Sentence> all;
  for (const std::uint64_t seed : {1, 2, 3, 4, 5}) {
    const auto model = tiny_transformer(0, 5, seed);
    for (const double alpha : {0.6, 4.0}) {
      BruteForce brute{.model = *model, .source = source, .longest = 3, .alpha = alpha};
      brute.search();
      EXPECT_EQ(translate(*model, padded({source}), {.beams = 64, .alpha = alpha, .longer = 0})[0],
                brute.best)
          << "seed " << seed << " alpha " << alpha;
      all.insert(brute.best);
    }
  }
  EXPECT_GT(all.size(), 2U);
}

TEST(BeamSearch, FourBeamsFindLikelierTranslationsThanOneWhateverTheBatch) {
  const auto model = tiny_transformer();
  const auto score = [&](const Sentence& source, Sentence target) {
    const c10::AutoGradMode no_gradient(false);
    target.push_back(kEnd);
    return -model->loss(padded({source}), padded({target}), 0, at::Reduction::Sum).item<double>() /
           std::pow((5 + static_cast<double>(target.size())) / 6, 0.6);
  };
  const auto one = translate(*model, padded(kSources), {.beams = 1}),
             four = translate(*model, padded(kSources), {.beams = 4});
  double gain = 0;
  for (std::size_t i = 0; i < kSources.size(); ++i) {
    gain += score(kSources[i], four[i]) - score(kSources[i], one[i]);
    EXPECT_EQ(translate(*model, padded({kSources[i]}), {.beams = 4})[0], four[i]) << i;
  }
  EXPECT_GT(gain, 0);
}

TEST(BeamSearch, ATranslationIsNeverLongerThanItMayBe) {
  const auto model = tiny_transformer();
  for (const auto& translation : translate(*model, padded({{4, 1}, {5, 1}}), {.beams = 3, .longer = 0}))
    EXPECT_LE(translation.size(), 1U);
}

}  // namespace
}  // namespace starling
