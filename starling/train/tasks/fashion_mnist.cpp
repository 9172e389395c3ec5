// Fashion-MNIST (data/fashion_mnist.h), sorted into its ten classes by a small ResNet
// (models/resnet8.h).
//
//   batch   images and labels; with data.flip every second image is mirrored, by chance
//   loss    cross entropy
//   score   accuracy: the share of test images whose class is predicted
#include "starling/data/fashion_mnist.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "starling/core/random.h"
#include "starling/models/classifier.h"
#include "starling/train/classification.h"
#include "starling/train/recipe.h"
#include "starling/train/task.h"

namespace starling::fashion_mnist {
namespace {

constexpr int kClasses = 10;

struct Keys {
  std::int64_t limit = 0;
  bool flip = true;
  std::string network = "resnet-8";
  int width = 16;
};

void data_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("limit", &k.limit, at_least(0), "take only the first so many training images; 0: all");
  c.key("flip", &k.flip, "turn every second training image left to right, by chance");
}

void model_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("name", &k.network, known_classifiers(), "network");
  c.key("width", &k.width, between(1, 1024), "channels of the first stage, doubled twice further on");
}

const Keys& keys_of(const Recipe& recipe) { return keys_in<Keys>(recipe.task); }

void find_data(const Recipe& recipe) { find_fashion_mnist(recipe.data.dir); }

std::shared_ptr<Classifier> classifier(const Recipe& recipe) {
  const Keys& keys = keys_of(recipe);
  return make_classifier(keys.network, keys.width, recipe.model.dtype, seed_of(recipe));
}
std::shared_ptr<torch::nn::Module> model(const Recipe& recipe) { return classifier(recipe); }

// The images must outlive it.
ClassSet class_set(const ImageSet& images) {
  return {.examples = images.size(),
          .classes = kClasses,
          .label = [labels = images.labels.const_data_ptr<std::int64_t>()](std::int64_t image) {
            return labels[image];
          }};
}

class FashionMnistTask final : public ClassificationTask {
 public:
  FashionMnistTask(std::shared_ptr<const FashionMnist> data, const Recipe& recipe, const Drawer& who)
      : ClassificationTask(class_set(data->train), recipe, who, classifier(recipe)),
        data_(std::move(data)),
        flip_(keys_of(recipe).flip) {}

  Batch batch(std::int64_t number) override {
    const auto epoch = static_cast<std::uint64_t>(deal().place(number).epoch);
    const std::uint64_t flips = random_bits({seed_, epoch});
    const ImageBatch drawn =
        make_batch(data_->train, sampler_.batch(number), flip_ ? std::optional(flips) : std::nullopt);
    return {drawn.images, drawn.labels};
  }

  std::int64_t test_examples() const override { return data_->test.size(); }

  Tally test(std::int64_t first, std::int64_t last) override {
    constexpr std::int64_t kBatch = 50;  // its activations stay in cache
    Tally tally{.examples = last - first, .counts = {0}};
    for (std::int64_t begin = first; begin < last; begin += kBatch) {
      const ImageBatch drawn = make_batch(data_->test, numbers_of(begin, std::min(begin + kBatch, last)));
      add_answers(tally, {drawn.images, drawn.labels});
    }
    return tally;
  }

 private:
  const std::shared_ptr<const FashionMnist> data_;
  const bool flip_;
};

MakeTask load(const Recipe& recipe) {
  FashionMnist data = load_fashion_mnist(recipe.data.dir);
  if (keys_of(recipe).limit > 0) data.train = data.train.first(keys_of(recipe).limit);
  return [recipe, shared = std::make_shared<const FashionMnist>(std::move(data))](const Drawer& who) {
    return std::make_unique<FashionMnistTask>(shared, recipe, who);
  };
}

}  // namespace

extern constinit const TaskInfo task{
    .name = "fashion-mnist",
    .examples = "images",
    .batch_of = "images",
    .drawn = "the order of the images and their flips",
    .dir = "the dataset's files; empty: where scripts/fetch-fashion-mnist puts them",
    .score = kAccuracy,
    .has_classes = true,
    .data_keys = data_keys,
    .model_keys = model_keys,
    .find_data = find_data,
    .model = model,
    .load = load,
};

}  // namespace starling::fashion_mnist
