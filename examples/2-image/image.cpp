// A small convolutional network learns Fashion-MNIST; each worker has a share of the images.
//
//   scripts/fetch-fashion-mnist
//   torchrun --no-python --nproc-per-node 3 out/examples/2-image ~/.cache/starling/fashion-mnist
//   [IMAGES]
//
// It learns the first IMAGES images (6,000 by default, 60,000 exist), and tests on a sixth as many
// of the test images.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>
#include <zlib.h>

#include "starling/optim/optimizer.h"

namespace {

constexpr int kEpochs = 3, kBatch = 20;

struct Images {
  torch::Tensor pixels, labels;
};

// The bytes of a gzipped IDX file that fill `shape`, behind its header.
torch::Tensor read_idx(const std::string& path, int header, const std::vector<std::int64_t>& shape) {
  const torch::Tensor bytes = torch::empty(shape, torch::kUInt8);
  const auto size = static_cast<unsigned>(bytes.numel());
  const gzFile file = gzopen(path.c_str(), "rb");
  const bool whole = file && gzseek(file, header, SEEK_SET) == header &&
                     gzread(file, bytes.data_ptr(), size) == static_cast<int>(size);
  if (file) gzclose(file);
  if (!whole) throw std::runtime_error(path + ": not there, or too short");
  return bytes;
}

Images read_images(const std::string& name, std::int64_t count) {
  return {read_idx(name + "-images-idx3-ubyte.gz", 16, {count, 1, 28, 28}).to(torch::kFloat) / 255,
          read_idx(name + "-labels-idx1-ubyte.gz", 8, {count}).to(torch::kLong)};
}

void train(const std::string& folder, std::int64_t count) {
  const auto world = starling::World::from_environment();
  const Images all = read_images(folder + "/train", count), test = read_images(folder + "/t10k", count / 6);
  const std::int64_t share = count / world.size;
  const Images mine{all.pixels.narrow(0, share * world.rank, share),
                    all.labels.narrow(0, share * world.rank, share)};

  torch::manual_seed(world.rank);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).stride(2)),
                              torch::nn::ReLU(),
                              torch::nn::Conv2d(torch::nn::Conv2dOptions(16, 32, 3).stride(2)),
                              torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(32 * 6 * 6, 10));
  starling::Optimizer optimizer(*model, starling::AccumAdamW{.lr = 2e-3, .window = 4}, {.topology = "base-2"},
                                world);

  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    double sum = 0;
    const auto batches = torch::randperm(share).split(kBatch);
    for (const torch::Tensor& batch : batches) {
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(model->forward(mine.pixels.index_select(0, batch)),
                                                  mine.labels.index_select(0, batch));
      loss.backward();
      optimizer.step();
      sum += loss.item<double>();
    }
    // The average model of all workers, until the end of this turn of the loop.
    const starling::Consensus average(optimizer);
    const torch::NoGradGuard no_grad;
    const auto right = model->forward(test.pixels).argmax(1).eq(test.labels).to(torch::kFloat).mean();
    std::printf("worker %d of %d, epoch %d: loss %.4f, test accuracy of the average model %.4f\n", world.rank,
                world.size, epoch, sum / static_cast<double>(batches.size()), right.item<double>());
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2 || count > 3) {
    std::fprintf(stderr, "usage: %s FOLDER [IMAGES]\n", arguments[0]);
    return 2;
  }
  try {
    train(arguments[1], count == 3 ? std::atoll(arguments[2]) : 6000);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
