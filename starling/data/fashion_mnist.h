// Fashion-MNIST (Xiao, Rasul & Vollgraf 2017): 60,000 training and 10,000 test images of clothes,
// 28x28 pixels, grey, in 10 classes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace starling {

struct ImageSet {
  at::Tensor images;  // uint8 [n, 28, 28]
  at::Tensor labels;  // int64 [n]
  std::int64_t size() const { return labels.size(0); }
  ImageSet first(std::int64_t n) const;  // all, if there are fewer
};

struct FashionMnist {
  ImageSet train;
  ImageSet test;
};

// Returns `dir`. If it is empty, returns the folder that scripts/fetch-fashion-mnist fills:
// ${STARLING_CACHE}/fashion-mnist, by default ${XDG_CACHE_HOME:-~/.cache}/starling/fashion-mnist.
std::string fashion_mnist_folder(const std::string& dir);
// Reads the four idx files. Throws Error if one is missing (the message names the script that
// fetches it), damaged or of another format.
FashionMnist load_fashion_mnist(const std::string& dir);
// Throws as load_fashion_mnist() if a file is missing. Reads nothing.
void find_fashion_mnist(const std::string& dir);

struct ImageBatch {
  at::Tensor images;  // float [n, 1, 28, 28], mean 0 and deviation 1 over the training set
  at::Tensor labels;  // int64 [n]
};
// Returns the images with these indices. With `flip`, a seed, each image is mirrored left to right
// with probability 1/2, which depends on the seed and the image's index alone.
ImageBatch make_batch(const ImageSet& set, std::span<const std::int64_t> indices,
                      std::optional<std::uint64_t> flip = std::nullopt);

}  // namespace starling
