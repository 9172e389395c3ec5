#include "starling/models/beam_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ranges>
#include <utility>

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <c10/core/GradMode.h>

namespace starling {

namespace {

using at::Tensor;

constexpr double kNever = -std::numeric_limits<double>::infinity();

struct Hypothesis {
  std::vector<std::int64_t> tokens;
  double score = kNever;  // log P
  std::int64_t row = 0;   // of the decoder, before the next selection
};

struct Sentence {
  std::size_t place;     // in the source
  std::int64_t longest;  // most tokens
  std::vector<Hypothesis> beam;
  std::int64_t ended = 0;
  std::vector<std::int64_t> best{};
  double best_score = kNever;
};

Tensor tensor_of(const std::vector<std::int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device);
}

void end(Sentence& sentence, const Hypothesis& hypothesis, double score, double alpha) {
  ++sentence.ended;
  const auto length = static_cast<double>(hypothesis.tokens.size() + 1);
  const double normalised = score / std::pow((5 + length) / 6, alpha);
  if (normalised <= sentence.best_score) return;
  sentence.best_score = normalised;
  sentence.best = hypothesis.tokens;
}

// The sentence's next beam, from its best candidates: `scores` fall, `places` are
// row * vocabulary + token.
void extend(Sentence& sentence, const double* scores, const std::int64_t* places, std::int64_t candidates,
            std::int64_t vocabulary, std::int64_t first_row, const SearchOptions& options) {
  std::vector<Hypothesis> beam;
  for (std::int64_t i = 0; i < candidates && std::ssize(beam) < options.beams && scores[i] > kNever; ++i) {
    const std::int64_t row = places[i] / vocabulary, token = places[i] % vocabulary;
    const Hypothesis& from = sentence.beam[static_cast<std::size_t>(row)];
    if (token == Transformer::kEnd) {
      if (i < options.beams) end(sentence, from, scores[i], options.alpha);
      continue;
    }
    Hypothesis& to = beam.emplace_back(from);
    to.tokens.push_back(token);
    to.score = scores[i];
    to.row = first_row + row;
  }
  if (beam.empty()) sentence.ended = options.beams;
  beam.resize(static_cast<std::size_t>(options.beams), {.tokens = {}, .score = kNever, .row = first_row});
  sentence.beam = std::move(beam);
}

// log P of each hypothesis with each next token: double [sentences, beams * vocabulary].
Tensor candidates_of(const std::vector<Sentence>& sentences, const Tensor& logits, std::int64_t beams) {
  const auto n = std::ssize(sentences);
  const Tensor scores = logits.log_softmax(1).to(at::kDouble).view({n, beams, logits.size(1)});
  scores.select(2, Transformer::kPadding).fill_(kNever);
  for (std::int64_t i = 0; i < n; ++i) {
    const Sentence& sentence = sentences[static_cast<std::size_t>(i)];
    for (std::int64_t row = 0; row < beams; ++row) {
      const Hypothesis& hypothesis = sentence.beam[static_cast<std::size_t>(row)];
      const Tensor own = scores[i][row];
      if (std::ssize(hypothesis.tokens) == sentence.longest)
        own.narrow(0, Transformer::kEnd + 1, own.size(0) - Transformer::kEnd - 1).fill_(kNever);
      own.add_(hypothesis.score);
    }
  }
  return scores.flatten(1);
}

}  // namespace

std::vector<std::vector<std::int64_t>> translate(Transformer& model, const Tensor& source,
                                                 const SearchOptions& options) {
  const c10::AutoGradMode no_gradient(false);
  const at::Device device = source.device();
  const std::int64_t beams = options.beams;
  std::vector<std::vector<std::int64_t>> translations(static_cast<std::size_t>(source.size(0)));
  const Tensor lengths = source.ne(Transformer::kPadding).sum(1).cpu().contiguous();
  std::vector<Sentence> sentences;
  for (std::size_t i = 0; i < translations.size(); ++i) {
    Sentence& sentence = sentences.emplace_back(Sentence{
        .place = i, .longest = lengths.data_ptr<std::int64_t>()[i] - 1 + options.longer, .beam = {}});
    sentence.beam.resize(static_cast<std::size_t>(beams));
    sentence.beam[0].score = 0;
  }

  auto decoding = model.decode(source);
  std::vector<std::int64_t> tokens(translations.size() * static_cast<std::size_t>(beams), Transformer::kEnd);
  while (!sentences.empty()) {
    const Tensor logits = decoding.next(tensor_of(tokens, device));
    const std::int64_t vocabulary = logits.size(1), candidates = std::min(2 * beams, beams * vocabulary);
    const auto [best, where] = candidates_of(sentences, logits, beams).topk(candidates);
    const Tensor scores = best.cpu().contiguous(), places = where.cpu().contiguous();

    std::vector<Sentence> left;
    std::vector<std::int64_t> kept, rows;
    tokens.clear();
    for (std::size_t i = 0; i < sentences.size(); ++i) {
      Sentence& sentence = sentences[i];
      const auto number = static_cast<std::int64_t>(i);
      extend(sentence, scores.data_ptr<double>() + number * candidates,
             places.data_ptr<std::int64_t>() + number * candidates, candidates, vocabulary, number * beams,
             options);
      if (sentence.ended >= beams) {
        translations[sentence.place] = std::move(sentence.best);
        continue;
      }
      kept.push_back(number);
      for (const Hypothesis& hypothesis : sentence.beam) {
        rows.push_back(hypothesis.row);
        tokens.push_back(hypothesis.tokens.empty() ? Transformer::kEnd : hypothesis.tokens.back());
      }
      left.push_back(std::move(sentence));
    }
    const bool all_stay = std::ssize(rows) == logits.size(0) && std::ranges::is_sorted(rows) &&
                          std::ranges::adjacent_find(rows) == rows.end();
    if (!all_stay && !left.empty()) decoding.select(tensor_of(kept, device), tensor_of(rows, device));
    sentences = std::move(left);
  }
  return translations;
}

}  // namespace starling
