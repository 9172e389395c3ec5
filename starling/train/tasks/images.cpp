// Images in shards or tar archives (data/image_shards.h), sorted into their classes by a ResNet
// (models/resnet.h).
//
//   batch   uint8 images and labels; each image is a random part of the original, resized
//   loss    cross entropy, with label smoothing
//   score   accuracy: the share of images of the split "val" whose class is predicted, from their
//           middle
//
// Broken images are left out of their batch, or of the test, and named in the log.
#include <algorithm>
#include <deque>
#include <future>
#include <set>
#include <utility>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"
#include "starling/data/image_loader.h"
#include "starling/data/image_shards.h"
#include "starling/models/resnet.h"
#include "starling/train/classification.h"
#include "starling/train/recipe.h"
#include "starling/train/task.h"

namespace starling::images {
namespace {

struct Keys {
  int size = 224, test_size = 0, test_side = 0;
  RandomViews views;
  int threads = 2;
  ResNetOptions model;
  std::string stem = "7x7";
  double label_smoothing = 0;
};

void data_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("size", &k.size, between(8, 4096), "pixels along each side of the square that the network sees");
  c.key("test_size", &k.test_size, between(0, 4096), "the same in a test; 0: size");
  c.key(
      "test_side", &k.test_side, between(0, 8192),
      "pixels of an image's shorter side in a test, before its middle is cut out; 0: test_size * 256 / 224");
  c.key("area", &k.views.least_area, between(0.001, 1),
        "the least area of the random part of a training image, as a share of the image");
  c.key("flip", &k.views.flip, "turn every second training image left to right, by chance");
  c.key("threads", &k.threads, between(1, 1024), "threads of each worker that decode images");
}

void model_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("depth", &k.model.depth, between(18, 101), "layers of the ResNet: 18, 34, 50 or 101");
  c.key("classes", &k.model.classes, between(1, 1 << 20), "classes that there are");
  c.key("stem", &k.stem, Choices{"7x7", "3x3"},
        "first layer: 7x7 with stride 2 and pooling, or 3x3 for images of about 32x32 pixels");
  c.key("zero_init", &k.model.zero_init, "begin with blocks that change nothing");
  c.key("label_smoothing", &k.label_smoothing, from_below(0, 1),
        "share of the target that all classes share");
  recompute_key(c, &k.model.recompute);
}

const Keys& keys_of(const Recipe& recipe) { return keys_in<Keys>(recipe.task); }

int test_size_of(const Keys& keys) { return keys.test_size > 0 ? keys.test_size : keys.size; }
int test_side_of(const Keys& keys) {
  return keys.test_side > 0 ? keys.test_side : test_size_of(keys) * 256 / 224;
}

void check(const Recipe& recipe, const Config& config) {
  const Keys& k = keys_of(recipe);
  check_resnet_depth(k.model.depth, config.origin("model.depth") + ": model.depth");
  if (test_side_of(k) < test_size_of(k))
    throw UsageError(fmt::format("{}: data.test_side = {}: wants at least {}, the size in a test",
                                 config.origin("data.test_side"), k.test_side, test_size_of(k)));
}

const std::string& folder_of(const Recipe& recipe) {
  return needed_dir(recipe, "train-*.shard and val-*.shard, or train-*.tar and val-*.tar");
}

void find_data(const Recipe& recipe) {
  for (const char* split : {"train", "val"}) find_image_shards(folder_of(recipe), split);
}

std::shared_ptr<Classifier> classifier(const Recipe& recipe) {
  torch::manual_seed(seed_of(recipe));
  ResNetOptions options = keys_of(recipe).model;
  options.small_images = keys_of(recipe).stem == "3x3";
  options.type = type_named(recipe.model.dtype);
  return make_resnet(options);
}
std::shared_ptr<torch::nn::Module> model(const Recipe& recipe) { return classifier(recipe); }

struct Data {
  std::shared_ptr<const ImageShards> train, val;
};

ClassSet class_set(const std::shared_ptr<const ImageShards>& set, int classes) {
  return {.examples = set->size(), .classes = classes, .label = [set](std::int64_t image) {
            return set->label(image);
          }};
}

class ImagesTask final : public ClassificationTask {
 public:
  ImagesTask(Data data, const Recipe& recipe, const Drawer& who)
      : ClassificationTask(class_set(data.train, keys_of(recipe).model.classes), recipe, who,
                           classifier(recipe), keys_of(recipe).label_smoothing),
        data_(std::move(data)),
        keys_(keys_of(recipe)),
        loader_(keys_.threads, /*pinned=*/recipe.run.device == "cuda") {}

  Batch batch(std::int64_t number) override {
    constexpr std::size_t kAhead = 2;
    if (number != next_) ahead_.clear();
    next_ = number + 1;
    while (ahead_.size() <= kAhead) ahead_.push_back(start(number + std::ssize(ahead_)));
    DecodedImages now = ahead_.front().get();
    ahead_.pop_front();
    note(now.skipped);
    if (now.labels.numel() == 0) throw Error(fmt::format("no image of a batch is whole: {}", now.skipped[0]));
    return {now.images, now.labels};
  }

  std::int64_t test_examples() const override { return data_.val->size(); }

  // Broken images count as examples, so that parts add up to the whole.
  Tally test(std::int64_t first, std::int64_t last) override {
    constexpr std::int64_t kBatch = 64;
    const int size = test_size_of(keys_), side = test_side_of(keys_);
    const auto part = [&](std::int64_t begin) {
      return loader_.start(
          data_.val, numbers_of(begin, std::min(begin + kBatch, last)), size,
          [side, size](std::int64_t, ImageSize whole) { return centre_view(whole, side, size); });
    };
    Tally tally{.examples = last - first, .counts = {0, 0}};
    std::future<DecodedImages> next = part(first);
    for (std::int64_t begin = first; begin < last; begin += kBatch) {
      const DecodedImages now = next.get();
      next = part(begin + kBatch);
      note(now.skipped);
      tally.counts[1] += std::ssize(now.skipped);
      if (now.labels.numel() == 0) continue;
      add_answers(tally, {now.images, now.labels});
    }
    return tally;
  }

  Score score(const Tally& whole) const override {
    return accuracy(whole, std::max<std::int64_t>(1, whole.examples - whole.counts[1]));
  }

  std::vector<std::string> warnings() override { return std::exchange(warnings_, {}); }

 private:
  std::future<DecodedImages> start(std::int64_t number) {
    const auto epoch = static_cast<std::uint64_t>(deal().place(number).epoch);
    const auto images = sampler_.batch(number);
    return loader_.start(data_.train, {images.begin(), images.end()}, keys_.size,
                         [views = keys_.views, seed = seed_, epoch](std::int64_t image, ImageSize whole) {
                           return random_view(whole, views,
                                              random_bits({seed, epoch, static_cast<std::uint64_t>(image)}));
                         });
  }

  at::Tensor logits(const at::Tensor& images) override {
    const Batch colours = beside(*network_, {mean_, deviation_});
    return network_->forward((images.to(at::kFloat) - colours[0]) / colours[1]);
  }

  void note(const std::vector<std::string>& skipped) {
    for (const std::string& line : skipped) {
      if (broken_.insert(line).second)
        warnings_.push_back(fmt::format("{}; it is left out ({} so far)", line, broken_.size()));
    }
  }

  const Data data_;
  const Keys keys_;
  // ImageNet's colours have these.
  const at::Tensor mean_ = at::tensor({123.675, 116.28, 103.53}, at::kFloat).view({3, 1, 1});
  const at::Tensor deviation_ = at::tensor({58.395, 57.12, 57.375}, at::kFloat).view({3, 1, 1});
  std::set<std::string> broken_;
  std::vector<std::string> warnings_;
  std::int64_t next_ = 0;
  std::deque<std::future<DecodedImages>> ahead_;  // batches next_, next_ + 1, ..
  ImageLoader loader_;
};

MakeTask load(const Recipe& recipe) {
  const std::string& folder = folder_of(recipe);
  const Data data{std::make_shared<const ImageShards>(folder, "train"),
                  std::make_shared<const ImageShards>(folder, "val")};
  if (data.train->classes() != data.val->classes())
    throw Error(fmt::format("{}: the splits train and val have different classes", folder));
  const int classes = keys_of(recipe).model.classes;
  if (const std::size_t names = data.train->classes().size(); names > 0 && std::cmp_not_equal(names, classes))
    throw UsageError(fmt::format("model.classes = {}: {} has {} classes", classes, folder, names));
  for (const auto& split : {data.train, data.val}) {
    if (const std::int64_t highest = split->highest_label(); highest >= classes)
      throw UsageError(fmt::format("model.classes = {}: {} has the label {}, and the first one is 0", classes,
                                   folder, highest));
  }
  return [recipe, data](const Drawer& who) { return std::make_unique<ImagesTask>(data, recipe, who); };
}

}  // namespace

extern constinit const TaskInfo task{
    .name = "images",
    .examples = "images",
    .batch_of = "images",
    .drawn = "the order of the images and the part of each that is seen",
    .dir =
        "train-*.shard and val-*.shard, as `starling pack images` makes them, or train-*.tar and val-*.tar",
    .score = kAccuracy,
    .has_classes = true,
    .data_keys = data_keys,
    .model_keys = model_keys,
    .check = check,
    .find_data = find_data,
    .model = model,
    .load = load,
};

}  // namespace starling::images
