// CIFAR-10 (data/cifar10.h), sorted into its ten classes by a ResNet (models/resnet.h) with a first
// layer of 3x3.
//
//   batch   uint8 images and labels; each image is moved and mirrored by chance
//   loss    cross entropy
//   score   accuracy: the share of test images whose class is predicted
#include "starling/data/cifar10.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "starling/core/random.h"
#include "starling/models/resnet.h"
#include "starling/train/classification.h"
#include "starling/train/recipe.h"
#include "starling/train/task.h"

namespace starling::cifar10 {
namespace {

struct Keys {
  RandomShifts shifts;
  ResNetOptions model{.depth = 18, .classes = Cifar10Images::kClasses, .small_images = true};
};

void data_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("pad", &k.shifts.pad, between(0, Cifar10Images::kSide),
        "pixels by which a training image moves at most, by chance, along each side");
  c.key("flip", &k.shifts.flip, "turn every second training image left to right, by chance");
}

void model_keys(Config& c, std::any& keys) {
  auto& k = keys_in<Keys>(keys);
  c.key("depth", &k.model.depth, between(18, 101), "layers of the ResNet: 18, 34, 50 or 101");
  c.key("zero_init", &k.model.zero_init, "begin with blocks that change nothing");
  recompute_key(c, &k.model.recompute);
}

const Keys& keys_of(const Recipe& recipe) { return keys_in<Keys>(recipe.task); }

void check(const Recipe& recipe, const Config& config) {
  check_resnet_depth(keys_of(recipe).model.depth, config.origin("model.depth") + ": model.depth");
}

const std::string& folder_of(const Recipe& recipe) {
  return needed_dir(recipe, "data_batch_1.bin to data_batch_5.bin and test_batch.bin");
}

void find_data(const Recipe& recipe) { find_cifar10(folder_of(recipe)); }

std::shared_ptr<Classifier> classifier(const Recipe& recipe) {
  torch::manual_seed(seed_of(recipe));
  ResNetOptions options = keys_of(recipe).model;
  options.type = type_named(recipe.model.dtype);
  return make_resnet(options);
}
std::shared_ptr<torch::nn::Module> model(const Recipe& recipe) { return classifier(recipe); }

struct Data {
  std::shared_ptr<const Cifar10Images> train, test;
};

// uint8 [n, 3, 32, 32], and the labels. `seed`: with the image's index, of the shift.
Batch make_batch(const Cifar10Images& set, std::span<const std::int64_t> indices, const RandomShifts& shifts,
                 std::uint64_t seed) {
  constexpr std::int64_t kSide = Cifar10Images::kSide;
  const at::Tensor images = at::empty({std::ssize(indices), 3, kSide, kSide}, at::kByte);
  const at::Tensor labels = at::empty({std::ssize(indices)}, at::kLong);
  const std::span pixels(images.mutable_data_ptr<std::uint8_t>(), static_cast<std::size_t>(images.numel()));
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const std::int64_t image = indices[i];
    labels.mutable_data_ptr<std::int64_t>()[i] = set.label(image);
    shift_image(set.pixels(image), shifts, random_bits({seed, static_cast<std::uint64_t>(image)}),
                pixels.subspan(i * Cifar10Images::kPixels, Cifar10Images::kPixels));
  }
  return {images, labels};
}

ClassSet class_set(const std::shared_ptr<const Cifar10Images>& set) {
  return {.examples = set->size(), .classes = Cifar10Images::kClasses, .label = [set](std::int64_t image) {
            return set->label(image);
          }};
}

class Cifar10Task final : public ClassificationTask {
 public:
  Cifar10Task(Data data, const Recipe& recipe, const Drawer& who)
      : ClassificationTask(class_set(data.train), recipe, who, classifier(recipe)),
        data_(std::move(data)),
        shifts_(keys_of(recipe).shifts) {}

  Batch batch(std::int64_t number) override {
    const auto epoch = static_cast<std::uint64_t>(deal().place(number).epoch);
    return make_batch(*data_.train, sampler_.batch(number), shifts_, random_bits({seed_, epoch}));
  }

  std::int64_t test_examples() const override { return data_.test->size(); }

  Tally test(std::int64_t first, std::int64_t last) override {
    constexpr std::int64_t kBatch = 100;
    Tally tally{.examples = last - first, .counts = {0}};
    for (std::int64_t begin = first; begin < last; begin += kBatch) {
      const auto indices = numbers_of(begin, std::min(begin + kBatch, last));
      add_answers(tally, make_batch(*data_.test, indices, {.pad = 0, .flip = false}, /*seed=*/0));
    }
    return tally;
  }

 private:
  at::Tensor logits(const at::Tensor& images) override {
    const Batch colours = beside(*network_, {mean_, deviation_});
    return network_->forward((images.to(at::kFloat).div_(255) - colours[0]) / colours[1]);
  }

  const Data data_;
  const RandomShifts shifts_;
  // The numbers in common use, which A2CiD2's authors have too (github.com/AdelNabli/ACiD @89393fd,
  // utils/data_utils.py, line 98).
  const at::Tensor mean_ = at::tensor({0.4914, 0.4822, 0.4465}, at::kFloat).view({3, 1, 1});
  const at::Tensor deviation_ = at::tensor({0.2023, 0.1994, 0.2010}, at::kFloat).view({3, 1, 1});
};

MakeTask load(const Recipe& recipe) {
  const std::string& folder = folder_of(recipe);
  find_cifar10(folder);
  const Data data{std::make_shared<const Cifar10Images>(cifar10_files(folder, true)),
                  std::make_shared<const Cifar10Images>(cifar10_files(folder, false))};
  return [recipe, data](const Drawer& who) { return std::make_unique<Cifar10Task>(data, recipe, who); };
}

}  // namespace

extern constinit const TaskInfo task{
    .name = "cifar-10",
    .examples = "images",
    .batch_of = "images",
    .drawn = "the order of the images, their shifts and their flips",
    .dir = "data_batch_1.bin to data_batch_5.bin and test_batch.bin: CIFAR-10's binary version",
    .score = kAccuracy,
    .has_classes = true,
    .data_keys = data_keys,
    .model_keys = model_keys,
    .check = check,
    .find_data = find_data,
    .model = model,
    .load = load,
};

}  // namespace starling::cifar10
