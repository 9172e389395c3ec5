#include "starling/data/fashion_mnist.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>

#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/where.h>
#include <fmt/format.h>

#include "starling/core/error.h"
#include "starling/core/random.h"
#include "starling/data/idx.h"

namespace starling {

namespace {

constexpr std::int64_t kSide = 28;
constexpr int kClasses = 10;
// Mean and deviation of the pixels (0 to 1) of the 60,000 training images.
constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;

constexpr std::array kFiles{"train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz",
                            "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"};

ImageSet load_set(const std::string& images_path, const std::string& labels_path) {
  Idx images = read_idx(images_path, 3);
  if (images.shape[1] != kSide || images.shape[2] != kSide) {
    throw Error(fmt::format("{}: images of {}x{} pixels, wanted are {}x{}", images_path, images.shape[1],
                            images.shape[2], kSide, kSide));
  }
  Idx labels = read_idx(labels_path, 1);
  if (labels.shape[0] != images.shape[0]) {
    throw Error(fmt::format("{}: {} labels for the {} images of {}", labels_path, labels.shape[0],
                            images.shape[0], images_path));
  }
  const auto wrong =
      std::find_if(labels.data.begin(), labels.data.end(), [](int label) { return label >= kClasses; });
  if (wrong != labels.data.end()) {
    throw Error(fmt::format("{}: offset {} (unpacked): label {}, allowed are 0 to {}", labels_path,
                            8 + (wrong - labels.data.begin()), *wrong, kClasses - 1));
  }
  return {at::from_blob(images.data.data(), images.shape, at::kByte).clone(),
          at::from_blob(labels.data.data(), labels.shape, at::kByte).to(at::kLong)};
}

}  // namespace

std::string fashion_mnist_folder(const std::string& dir) {
  if (!dir.empty()) return dir;
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  if (const auto cache = variable("STARLING_CACHE"); !cache.empty()) return cache + "/fashion-mnist";
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/starling/fashion-mnist";
  return variable("HOME") + "/.cache/starling/fashion-mnist";
}

void find_fashion_mnist(const std::string& dir) {
  const std::string folder = fashion_mnist_folder(dir);
  for (const char* file : kFiles) {
    std::error_code error;
    if (!std::filesystem::exists(folder + "/" + file, error)) {
      throw Error(
          fmt::format("{}/{}: {}; scripts/fetch-fashion-mnist fetches it, data.dir names another folder",
                      folder, file, error ? error.message() : "not there"));
    }
  }
}

ImageSet ImageSet::first(std::int64_t n) const {
  n = std::min(n, size());
  return {images.narrow(0, 0, n), labels.narrow(0, 0, n)};
}

FashionMnist load_fashion_mnist(const std::string& dir) {
  find_fashion_mnist(dir);
  const std::string folder = fashion_mnist_folder(dir) + "/";
  return {load_set(folder + kFiles[0], folder + kFiles[1]), load_set(folder + kFiles[2], folder + kFiles[3])};
}

ImageBatch make_batch(const ImageSet& set, std::span<const std::int64_t> indices,
                      std::optional<std::uint64_t> flip) {
  const auto n = static_cast<std::int64_t>(indices.size());
  const at::Tensor index = at::from_blob(const_cast<std::int64_t*>(indices.data()), {n}, at::kLong);
  at::Tensor images = set.images.index_select(0, index);
  if (flip) {
    const at::Tensor flipped = at::empty({n, 1, 1}, at::kBool);
    for (std::int64_t i = 0; i < n; ++i) {
      flipped.data_ptr<bool>()[i] = random_bits({*flip, static_cast<std::uint64_t>(indices[i])}) & 1;
    }
    images = at::where(flipped, images.flip(2), images);
  }
  return {images.unsqueeze(1).to(at::kFloat).div_(255).sub_(kMean).div_(kDeviation),
          set.labels.index_select(0, index)};
}

}  // namespace starling
