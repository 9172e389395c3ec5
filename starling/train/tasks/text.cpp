// Text, whose next token GPT-2 (models/gpt2.h) predicts.
//
// data.dir holds train.bin and val.bin (data/tokens.h). An epoch cuts train.bin into windows of
// model.context tokens, from a random place within the first window on.
//
//   batch   the tokens of windows, and the tokens that follow each of them
//   loss    cross entropy, in nats per token
//   score   perplexity: e to the mean loss over val.bin, in windows that do not overlap
#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"
#include "starling/data/sampler.h"
#include "starling/data/tokens.h"
#include "starling/models/classifier.h"
#include "starling/models/gpt2.h"
#include "starling/train/recipe.h"
#include "starling/train/task.h"

namespace starling::text {
namespace {

struct Keys {
  std::int64_t test_limit = 0;
  Gpt2Options model;
};

void data_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("test_limit", &k.test_limit, at_least(0), "test on the first so many windows of val.bin; 0: on all");
}

void model_keys(Config& c, std::any& keys) {
  Gpt2Options& m = keys_in<Keys>(keys).model;
  c.key("layers", &m.layers, between(1, 1000), "layers; GPT-2 small has 12, medium 24, large 36");
  c.key("heads", &m.heads, between(1, 1000), "attention heads; GPT-2 small has 12, medium 16, large 20");
  c.key("width", &m.width, between(1, 1 << 16),
        "size of a token's vector, a multiple of heads; GPT-2 small has 768, medium 1024, large 1280");
  c.key("context", &m.context, between(1, 1 << 20), "tokens in a window");
  c.key("vocabulary", &m.vocabulary, between(2, 1 << 16), "tokens that there are; GPT-2 has 50257");
  recompute_key(c, &m.recompute);
}

const Keys& keys_of(const Recipe& recipe) { return keys_in<Keys>(recipe.task); }

void check(const Recipe& recipe, const Config& config) {
  const Gpt2Options& m = keys_of(recipe).model;
  if (m.width % m.heads != 0)
    throw UsageError(fmt::format("{}: model.width = {}: wants a multiple of model.heads = {}",
                                 config.origin("model.width"), m.width, m.heads));
}

std::string path_of(const Recipe& recipe, const char* file) {
  return fmt::format("{}/{}", needed_dir(recipe, "train.bin and val.bin"), file);
}

struct Data {
  explicit Data(const Recipe& recipe)
      : train(path_of(recipe, "train.bin"), keys_of(recipe).model.vocabulary),
        val(path_of(recipe, "val.bin"), keys_of(recipe).model.vocabulary) {}
  const Tokens train, val;
};

void find_data(const Recipe& recipe) { const Data data(recipe); }

std::shared_ptr<Gpt2> gpt2(const Recipe& recipe) {
  torch::manual_seed(seed_of(recipe));
  Gpt2Options options = keys_of(recipe).model;
  options.type = type_named(recipe.model.dtype);
  return std::make_shared<Gpt2>(options);
}
std::shared_ptr<torch::nn::Module> model(const Recipe& recipe) { return gpt2(recipe); }

// These windows; window 0 begins at `offset`.
Batch batch_of(const Tokens& text, std::int64_t offset, std::int64_t context,
               std::span<const std::int64_t> windows) {
  const auto count = static_cast<std::int64_t>(windows.size());
  const at::Tensor tokens = at::empty({count, context + 1}, at::kLong);
  for (std::int64_t i = 0; i < count; ++i)
    text.copy(offset + windows[static_cast<std::size_t>(i)] * context,
              {tokens.data_ptr<std::int64_t>() + i * (context + 1), static_cast<std::size_t>(context + 1)});
  return {tokens.narrow(1, 0, context), tokens.narrow(1, 1, context)};
}

// A window needs the token behind it, too. `offset`: the largest place of the first window.
std::int64_t windows_of(const Tokens& text, std::int64_t context, std::int64_t offset, const char* file) {
  const std::int64_t windows = (text.size() - 1 - offset) / context;
  if (windows < 1)
    throw Error(fmt::format("{} has {} tokens, too few for a window of model.context = {}", file, text.size(),
                            context));
  return windows;
}

class TextTask final : public Task {
 public:
  TextTask(std::shared_ptr<const Data> data, const Recipe& recipe, const Drawer& who)
      : data_(std::move(data)),
        context_(keys_of(recipe).model.context),
        seed_(seed_of(recipe)),
        sampler_(windows_of(data_->train, context_, context_ - 1, "train.bin"), recipe.train.batch, who,
                 seed_),
        test_windows_(windows_of(data_->val, context_, 0, "val.bin")),
        model_(gpt2(recipe)) {
    if (const std::int64_t limit = keys_of(recipe).test_limit; limit > 0)
      test_windows_ = std::min(test_windows_, limit);
  }

  torch::nn::Module& model() override { return *model_; }
  const Deal& deal() const override { return sampler_.deal(); }

  Batch batch(std::int64_t number) override {
    const auto epoch = static_cast<std::uint64_t>(deal().place(number).epoch);
    const auto offset = random_bits({seed_, epoch}) % static_cast<std::uint64_t>(context_);
    return batch_of(data_->train, static_cast<std::int64_t>(offset), context_, sampler_.batch(number));
  }
  at::Tensor loss(const Batch& batch) override {
    const Batch here = beside(*model_, batch);
    return model_->loss(here[0], here[1]);
  }

  std::int64_t test_examples() const override { return test_windows_; }

  Tally test(std::int64_t first, std::int64_t last) override {
    Tally tally;
    for (std::int64_t window = first; window < last; ++window) {
      const Batch batch = batch_of(data_->val, 0, context_, {&window, 1});
      tally.loss += loss(batch).item<double>();
      ++tally.examples;
    }
    return tally;
  }

  Score score(const Tally& whole) const override {
    const double loss = whole.loss / static_cast<double>(whole.examples);
    return {std::exp(loss), loss};
  }

 private:
  const std::shared_ptr<const Data> data_;
  const std::int64_t context_;
  const std::uint64_t seed_;
  Sampler sampler_;
  std::int64_t test_windows_;
  const std::shared_ptr<Gpt2> model_;
};

MakeTask load(const Recipe& recipe) {
  return [recipe, shared = std::make_shared<const Data>(recipe)](const Drawer& who) {
    return std::make_unique<TextTask>(shared, recipe, who);
  };
}

}  // namespace

extern constinit const TaskInfo task{
    .name = "text",
    .examples = "windows",
    .batch_of = "windows",
    .drawn = "the windows of the text and their order",
    .dir = "train.bin and val.bin: 16-bit tokens, as `starling pack text` makes them",
    .score = {.name = "perplexity", .higher_is_better = false},
    .data_keys = data_keys,
    .model_keys = model_keys,
    .check = check,
    .find_data = find_data,
    .model = model,
    .load = load,
};

}  // namespace starling::text
