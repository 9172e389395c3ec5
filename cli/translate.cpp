// starling translate: translates sentences by a trained model. With --tokens it
// reads and writes tokens. Otherwise it becomes python/starling/translate.py, which turns text into
// tokens and back by the vocabulary's own library, and runs this program with --tokens.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/script.h"
#include "cli/trained.h"
#include "starling/core/error.h"
#include "starling/core/input.h"
#include "starling/data/tokens.h"
#include "starling/models/beam_search.h"

namespace starling::cli {

namespace {

using Sentence = std::vector<std::int64_t>;

struct TranslateOptions {
  std::shared_ptr<TrainedOptions> trained = std::make_shared<TrainedOptions>();
  std::string vocabulary, reference, meteor;
  bool tokens = false;
  SearchOptions search;
  std::int64_t batch = 2048;
};

// The sentences, each with its end, and padding behind it.
at::Tensor batch_of(const std::vector<Sentence>& sentences, std::span<const std::size_t> numbers) {
  const auto longest = std::ssize(sentences[numbers.back()]) + 1;
  const at::Tensor rows = at::full({std::ssize(numbers), longest}, Transformer::kPadding, at::kLong);
  auto* row = rows.data_ptr<std::int64_t>();
  for (const std::size_t number : numbers) {
    *std::ranges::copy(sentences[number], row).out = Transformer::kEnd;
    row += longest;
  }
  return rows;
}

int translate_tokens(const TranslateOptions& options) {
  const LoadedModel loaded = load_trained(*options.trained, "translate", "translation");
  auto& model = dynamic_cast<Transformer&>(*loaded.module);
  const at::Device device = model.parameters().front().device();
  const std::int64_t vocabulary = model.vocabulary();
  std::vector<Sentence> sentences;
  for (std::string line; std::getline(std::cin, line);)
    sentences.push_back(named_input([&] {
      return tokens_of_text(line, Transformer::kEnd + 1, vocabulary,
                            fmt::format("stdin:{}", sentences.size() + 1));
    }));

  // Sentences of about the same length together; an empty one stays empty.
  std::vector<std::size_t> order(sentences.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return sentences[i].size(); });
  const auto first = std::ranges::find_if(order, [&](std::size_t i) { return !sentences[i].empty(); });
  std::vector<Sentence> translations(sentences.size());
  for (auto begin = static_cast<std::size_t>(first - order.begin()), end = begin; begin < order.size();
       begin = end) {
    while (end < order.size() &&
           (end == begin || static_cast<std::int64_t>((end + 1 - begin) *
                                                      (sentences[order[end]].size() + 1)) <= options.batch))
      ++end;
    const auto numbers = std::span(order).subspan(begin, end - begin);
    const auto found = translate(model, batch_of(sentences, numbers).to(device), options.search);
    for (std::size_t i = 0; i < numbers.size(); ++i) translations[numbers[i]] = found[i];
  }
  for (const Sentence& translation : translations) fmt::print("{}\n", fmt::join(translation, " "));
  return 0;
}

int run(const TranslateOptions& options) {
  if (options.tokens != options.vocabulary.empty())
    throw UsageError("translate: give the vocabulary, a sentencepiece.model; or --tokens without one");
  if (options.tokens && !options.reference.empty())
    throw UsageError("translate: --reference compares text, not --tokens");
  if (options.reference.empty() && !options.meteor.empty())
    throw UsageError("translate: --meteor compares with a --reference");
  if (options.tokens) return translate_tokens(options);
  std::vector<std::string> arguments{std::filesystem::read_symlink("/proc/self/exe").string(),
                                     options.vocabulary,
                                     options.reference,
                                     options.meteor,
                                     "translate",
                                     options.trained->model,
                                     "--tokens",
                                     "--beams",
                                     std::to_string(options.search.beams),
                                     "--alpha",
                                     fmt::format("{}", options.search.alpha),
                                     "--longer",
                                     std::to_string(options.search.longer),
                                     "--batch",
                                     std::to_string(options.batch)};
  const RecipeOptions& recipe = *options.trained->recipe;
  if (!recipe.file.empty()) arguments.insert(arguments.end(), {"--recipe", recipe.file});
  for (const auto& [path, value] : recipe.overrides) arguments.insert(arguments.end(), {"--" + path, value});
  become({"translate", "sentencepiece"}, arguments);
}

}  // namespace

void add_translate(CLI::App& app, Command& command) {
  CLI::App* sub =
      app.add_subcommand("translate", "Translate stdin, a sentence in each line, by a trained model");
  sub->footer("  starling translate out/run/checkpoints out/small/ende/sentencepiece.model < text.en");
  auto options = std::make_shared<TranslateOptions>();
  add_trained(*sub, options->trained);
  sub->add_option("vocabulary", options->vocabulary, "sentencepiece.model of `starling pack translation`")
      ->type_name("FILE");
  sub->add_option("--reference", options->reference,
                  "write sacrebleu's BLEU against the lines of this file to stderr")
      ->type_name("FILE");
  sub->add_option(
         "--meteor", options->meteor,
         "write nltk's METEOR too, with the Snowball stems of this language (german) and no synonyms")
      ->type_name("LANGUAGE");
  sub->add_flag("--tokens", options->tokens, "read and write tokens in place of text");
  add_number(*sub, "--beams", options->search.beams, "hypotheses that are kept; 1: greedy search", "N", 1,
             1000);
  add_number(*sub, "--alpha", options->search.alpha, "length penalty ((5 + length) / 6)^alpha", "X", 0.0,
             10.0);
  add_number(*sub, "--longer", options->search.longer,
             "tokens that a translation may have beyond its source's", "N", 0, 100000);
  add_number(*sub, "--batch", options->batch, "source tokens that are translated at once", "N", 1, 1 << 20);
  sub->callback([sub, options, &command] {
    take_unknown_keys(*sub, *options->trained->recipe);
    command = [options] { return run(*options); };
  });
}

}  // namespace starling::cli
