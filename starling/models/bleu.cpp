#include "starling/models/bleu.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

namespace starling {

namespace {

// In `counts`: right n-grams for n = 1 to 4, all n-grams, tokens of translations and of references.
constexpr std::size_t kLongest = 4, kTranslation = 8, kReference = 9;
static_assert(kReference + 1 == kBleuCounts);

using Gram = std::vector<std::int64_t>;

std::map<Gram, std::int64_t> grams(std::span<const std::int64_t> sentence, std::size_t n) {
  std::map<Gram, std::int64_t> counts;
  for (std::size_t i = 0; i + n <= sentence.size(); ++i) {
    const auto gram = sentence.subspan(i, n);
    ++counts[Gram(gram.begin(), gram.end())];
  }
  return counts;
}

}  // namespace

void count_bleu(std::span<const std::int64_t> translation, std::span<const std::int64_t> reference,
                std::span<std::int64_t> counts) {
  for (std::size_t n = 1; n <= kLongest; ++n) {
    const auto wanted = grams(reference, n);
    for (const auto& [gram, count] : grams(translation, n)) {
      const auto there = wanted.find(gram);
      if (there != wanted.end()) counts[n - 1] += std::min(count, there->second);
      counts[kLongest + n - 1] += count;
    }
  }
  counts[kTranslation] += std::ssize(translation);
  counts[kReference] += std::ssize(reference);
}

double bleu(std::span<const std::int64_t> counts) {
  double logs = 0;
  for (std::size_t n = 0; n < kLongest; ++n) {
    if (counts[n] == 0) return 0;
    logs += std::log(static_cast<double>(counts[n]) / static_cast<double>(counts[kLongest + n]));
  }
  const double brevity =
      1 - static_cast<double>(counts[kReference]) / static_cast<double>(counts[kTranslation]);
  return std::exp(logs / kLongest + std::min(0.0, brevity));
}

}  // namespace starling
