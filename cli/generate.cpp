// starling generate MODEL: text that a trained GPT-2 writes.
#include "starling/models/generate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/script.h"
#include "cli/trained.h"
#include "starling/core/error.h"
#include "starling/core/text.h"
#include "starling/data/tokens.h"

namespace starling::cli {

namespace {

const Script kScript{"pack", "tokenizers"};

struct GenerateOptions {
  std::shared_ptr<TrainedOptions> trained = std::make_shared<TrainedOptions>();
  std::string prompt, tokenizer;
  std::int64_t tokens = 200;
  Sampling sampling{.temperature = 0.8};
};

// Reads a tokenizer's output.
std::vector<std::int64_t> tokens_in(const std::string& text, std::int64_t vocabulary,
                                    const std::string& tokenizer) {
  const auto tokens = tokens_of_text(text, 0, std::numeric_limits<std::int64_t>::max(), tokenizer);
  if (tokens.empty()) throw UsageError(fmt::format("{}: has no token for the end of a text", tokenizer));
  if (const std::int64_t largest = *std::ranges::max_element(tokens); largest >= vocabulary)
    throw UsageError(
        fmt::format("{}: has token {}, but model.vocabulary = {}: is it the one that packed the text?",
                    tokenizer, largest, vocabulary));
  return tokens;
}

// A model's text gives no commands to a terminal. Line breaks and tabs stay.
std::string printable_lines(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of("\n\t"), text.size());
    out += printable(text.substr(0, end));
    out += text.substr(end, 1);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

int generate(const GenerateOptions& options) {
  const auto [recipe, module] = load_trained(*options.trained, "generate", "text");
  auto& model = dynamic_cast<Gpt2&>(*module);
  const std::string tokenizer =
      options.tokenizer.empty() ? recipe.data.dir + "/tokenizer.json" : options.tokenizer;
  // The end of a text, which is also what precedes one, then the prompt.
  std::vector<std::int64_t> prompt = tokens_in(output_of(kScript, {"encode", tokenizer}, options.prompt),
                                               model.options().vocabulary, tokenizer);
  Sampling sampling = options.sampling;
  sampling.end = prompt.front();
  const std::vector<std::int64_t> tokens =
      starling::generate(model, std::move(prompt), options.tokens, sampling);
  const std::string text =
      output_of(kScript, {"decode", tokenizer}, fmt::format("{}\n", fmt::join(tokens, "\n")));
  fmt::print("{}\n", printable_lines(options.prompt + text));
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Command& command) {
  CLI::App* sub = app.add_subcommand("generate", "Let a trained model of text write");
  sub->footer("  starling generate out/run/checkpoints");
  auto options = std::make_shared<GenerateOptions>();
  add_trained(*sub, options->trained);
  sub->add_option("--prompt", options->prompt, "how the text begins (default: empty)")->type_name("TEXT");
  add_number(*sub, "--tokens", options->tokens, "the most tokens to write", "N", 1, 1'000'000);
  add_number(*sub, "--temperature", options->sampling.temperature,
             "divides the logits: below 1 rarer tokens become rarer; 0: always the likeliest one", "X", 0.0,
             100.0);
  sub->add_option("--top-k", options->sampling.top_k,
                  "draw among the N likeliest tokens (default: among all)")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 16));
  sub->add_option("--seed", options->sampling.seed, "of the random draws")
      ->type_name("N")
      ->capture_default_str();
  sub->add_option("--tokenizer", options->tokenizer, "tokenizer.json (default: the one in data.dir)")
      ->type_name("FILE");
  sub->callback([sub, options, &command] {
    take_unknown_keys(*sub, *options->trained->recipe);
    command = [options] { return generate(*options); };
  });
}

}  // namespace starling::cli
