// Sentences in one language, which a Transformer (models/transformer.h) translates into another.
//
// data.dir holds train.pairs and val.pairs (data/pairs.h). Pairs of about the same length share a
// batch (data/length_sampler.h).
//
//   batch   sources and targets, each with its end and padding, and the seed of the dropout
//   loss    cross entropy with label smoothing, in nats per token
//   score   token BLEU: BLEU (Papineni et al. 2002) of greedy translations of val.pairs, over the
//           tokens of the vocabulary. BLEU over words is another number: `starling translate`
//
// The loss of the test is without smoothing.
#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"
#include "starling/data/length_sampler.h"
#include "starling/data/pairs.h"
#include "starling/models/beam_search.h"
#include "starling/models/bleu.h"
#include "starling/models/classifier.h"
#include "starling/models/transformer.h"
#include "starling/train/recipe.h"
#include "starling/train/task.h"

namespace starling::translation {
namespace {

using at::Tensor;

struct Keys {
  std::int64_t test_limit = 0;
  double smoothing = 0.1;
  TransformerOptions model;
};

void data_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("test_limit", &k.test_limit, at_least(0), "test on the first so many pairs of val.pairs; 0: on all");
}

void model_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  TransformerOptions& m = k.model;
  c.key("layers", &m.layers, between(1, 1000),
        "layers of the encoder, and of the decoder; base and big have 6");
  c.key("heads", &m.heads, between(1, 1000), "attention heads; base has 8, big 16");
  c.key("width", &m.width, between(2, 1 << 16),
        "size of a token's vector, even and a multiple of heads; base has 512, big 1024");
  c.key("inner", &m.inner, between(1, 1 << 20),
        "width within the feed-forward networks; base has 2048, big 4096");
  c.key("dropout", &m.dropout, between(0, 0.99),
        "share of values that training drops; base has 0.1, big 0.3");
  c.key("vocabulary", &m.vocabulary, between(3, 1 << 16), "tokens that there are, padding and end included");
  c.key("smoothing", &k.smoothing, between(0, 1),
        "label smoothing: share of a token's probability for all tokens");
  recompute_key(c, &m.recompute);
}

const Keys& keys_of(const Recipe& recipe) { return keys_in<Keys>(recipe.task); }

void check(const Recipe& recipe, const Config& config) {
  const TransformerOptions& m = keys_of(recipe).model;
  if (m.width % m.heads != 0 || m.width % 2 != 0)
    throw UsageError(fmt::format("{}: model.width = {}: wants an even multiple of model.heads = {}",
                                 config.origin("model.width"), m.width, m.heads));
}

std::string path_of(const Recipe& recipe, const char* file) {
  return fmt::format("{}/{}", needed_dir(recipe, "train.pairs and val.pairs"), file);
}

struct Data {
  explicit Data(const Recipe& recipe)
      : train(path_of(recipe, "train.pairs"), keys_of(recipe).model.vocabulary),
        val(path_of(recipe, "val.pairs"), keys_of(recipe).model.vocabulary) {}
  const Pairs train, val;
};

void find_data(const Recipe& recipe) {
  for (const char* file : {"train.pairs", "val.pairs"}) const MappedFile found(path_of(recipe, file));
}

std::shared_ptr<Transformer> transformer(const Recipe& recipe) {
  torch::manual_seed(seed_of(recipe));
  TransformerOptions options = keys_of(recipe).model;
  options.type = type_named(recipe.model.dtype);
  return std::make_shared<Transformer>(options);
}
std::shared_ptr<torch::nn::Module> model(const Recipe& recipe) { return transformer(recipe); }

// The longer sentence of a pair, with its end.
std::int64_t length_of(const Pairs& pairs, std::int64_t pair) {
  return std::max(pairs.source_length(pair), pairs.target_length(pair)) + 1;
}

std::vector<std::int64_t> lengths_of(const Pairs& pairs) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(pairs.size()));
  for (std::size_t i = 0; i < lengths.size(); ++i)
    lengths[i] = length_of(pairs, static_cast<std::int64_t>(i));
  return lengths;
}

enum class Side { source, target };

// The sentences of one side, each with its end, and padding behind it: int64 [n, longest].
Tensor sentences(const Pairs& pairs, Side side, std::span<const std::int64_t> numbers) {
  const auto length = [&](std::int64_t pair) {
    return side == Side::source ? pairs.source_length(pair) : pairs.target_length(pair);
  };
  const std::int64_t longest = length(*std::ranges::max_element(numbers, {}, length));
  const Tensor rows = at::full({std::ssize(numbers), longest + 1}, Transformer::kPadding, at::kLong);
  auto* row = rows.data_ptr<std::int64_t>();
  for (const std::int64_t pair : numbers) {
    const std::span to(row, static_cast<std::size_t>(length(pair)));
    side == Side::source ? pairs.copy_source(pair, to) : pairs.copy_target(pair, to);
    row[length(pair)] = Transformer::kEnd;
    row += longest + 1;
  }
  return rows;
}

class TranslationTask final : public Task {
 public:
  TranslationTask(std::shared_ptr<const Data> data, const Recipe& recipe, const Drawer& who)
      : data_(std::move(data)),
        smoothing_(keys_of(recipe).smoothing),
        seed_(seed_of(recipe)),
        rank_(who.rank),
        sampler_(lengths_of(data_->train), recipe.train.batch, who, seed_),
        test_pairs_(data_->val.size()),
        test_tokens_(recipe.train.batch),
        model_(transformer(recipe)) {
    if (const std::int64_t limit = keys_of(recipe).test_limit; limit > 0)
      test_pairs_ = std::min(test_pairs_, limit);
  }

  torch::nn::Module& model() override { return *model_; }
  const Deal& deal() const override { return sampler_.deal(); }

  Batch batch(std::int64_t number) override {
    const auto pairs = sampler_.batch(number);
    const std::uint64_t dropout =
        random_bits({seed_, static_cast<std::uint64_t>(rank_), static_cast<std::uint64_t>(number)});
    return {sentences(data_->train, Side::source, pairs), sentences(data_->train, Side::target, pairs),
            at::scalar_tensor(static_cast<std::int64_t>(dropout >> 1), at::kLong)};
  }
  Tensor loss(const Batch& batch) override {
    const Batch here = beside(*model_, {batch[0], batch[1]});
    at::Generator dropout = at::globalContext().defaultGenerator(here[0].device()).clone();
    dropout.set_current_seed(static_cast<std::uint64_t>(batch[2].item<std::int64_t>()));
    return model_->loss(here[0], here[1], smoothing_, at::Reduction::Mean, dropout);
  }

  std::int64_t test_examples() const override { return test_pairs_; }

  // The counts are those of BLEU, and behind them the tokens whose loss is in the sum.
  Tally test(std::int64_t first, std::int64_t last) override {
    Tally tally{.examples = last - first, .counts = std::vector<std::int64_t>(kBleuCounts + 1)};
    for (const std::vector<std::int64_t>& pairs : test_batches(first, last)) {
      const Batch here = beside(
          *model_, {sentences(data_->val, Side::source, pairs), sentences(data_->val, Side::target, pairs)});
      const Tensor &source = here[0], &target = here[1];
      tally.loss += model_->loss(source, target, 0, at::Reduction::Sum).item<double>();
      const auto translations = translate(*model_, source, {.beams = 1});
      for (std::size_t i = 0; i < pairs.size(); ++i) {
        std::vector<std::int64_t> reference(static_cast<std::size_t>(data_->val.target_length(pairs[i])));
        data_->val.copy_target(pairs[i], reference);
        count_bleu(translations[i], reference, std::span(tally.counts).first(kBleuCounts));
        tally.counts.back() += std::ssize(reference) + 1;
      }
    }
    return tally;
  }

  Score score(const Tally& whole) const override {
    return {bleu(std::span(whole.counts).first(kBleuCounts)),
            whole.loss / static_cast<double>(whole.counts.back())};
  }

 private:
  // These pairs of val.pairs, in batches of train.batch tokens.
  std::vector<std::vector<std::int64_t>> test_batches(std::int64_t first, std::int64_t last) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(last - first));
    std::iota(order.begin(), order.end(), first);
    const auto length = [&](std::int64_t pair) { return length_of(data_->val, pair); };
    std::ranges::stable_sort(order, {}, length);
    std::vector<std::vector<std::int64_t>> batches;
    for (const std::int64_t pair : order) {
      if (batches.empty() || (std::ssize(batches.back()) + 1) * length(pair) > test_tokens_)
        batches.emplace_back();
      batches.back().push_back(pair);
    }
    return batches;
  }

  const std::shared_ptr<const Data> data_;
  const double smoothing_;
  const std::uint64_t seed_;
  const int rank_;
  LengthSampler sampler_;
  std::int64_t test_pairs_;
  const std::int64_t test_tokens_;  // of a batch
  const std::shared_ptr<Transformer> model_;
};

MakeTask load(const Recipe& recipe) {
  return [recipe, shared = std::make_shared<const Data>(recipe)](const Drawer& who) {
    return std::make_unique<TranslationTask>(shared, recipe, who);
  };
}

}  // namespace

extern constinit const TaskInfo task{
    .name = "translation",
    .examples = "pairs",
    .batch_of = "tokens of the longer sentences, with padding,",
    .drawn = "the batches of sentences, their order and dropout",
    .dir = "train.pairs and val.pairs, as `starling pack translation` makes them",
    .score = {.name = "token_bleu", .higher_is_better = true, .percent = true},
    .data_keys = data_keys,
    .model_keys = model_keys,
    .check = check,
    .find_data = find_data,
    .model = model,
    .load = load,
};

}  // namespace starling::translation
