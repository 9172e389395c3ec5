#include "starling/data/fashion_mnist.h"

#include <array>
#include <cstdlib>
#include <numeric>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>

#include "tests/data/data_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::HasSubstr;

std::vector<std::uint8_t> pixels(int images) {
  std::vector<std::uint8_t> data(images * 28 * 28);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::uint8_t>(i * 7 + i / 784);
  return data;
}

class FashionMnistTest : public testing::Test {
 protected:
  FashionMnistTest() {
    write_gzip(folder_ / "train-images-idx3-ubyte.gz", idx_bytes({20, 28, 28}, pixels(20)));
    std::vector<std::uint8_t> labels(20);
    for (int i = 0; i < 20; ++i) labels[i] = static_cast<std::uint8_t>(i % 10);
    write_gzip(folder_ / "train-labels-idx1-ubyte.gz", idx_bytes({20}, labels));
    write_gzip(folder_ / "t10k-images-idx3-ubyte.gz", idx_bytes({3, 28, 28}, pixels(3)));
    write_gzip(folder_ / "t10k-labels-idx1-ubyte.gz", idx_bytes({3}, {1, 0, 9}));
  }

  std::string error() const {
    return refusal([&] { load_fashion_mnist(folder_.path); });
  }

  const Folder folder_;
};

TEST_F(FashionMnistTest, ReadsTheFourFiles) {
  const FashionMnist data = load_fashion_mnist(folder_.path);
  EXPECT_EQ(data.train.size(), 20);
  EXPECT_EQ(data.train.images.sizes(), (std::vector<std::int64_t>{20, 28, 28}));
  EXPECT_EQ(data.train.images[19][27][27].item<int>(), pixels(20).back());
  EXPECT_EQ(data.test.labels[2].item<std::int64_t>(), 9);
}

TEST_F(FashionMnistTest, NamesWhatIsWrong) {
  write_gzip(folder_ / "t10k-labels-idx1-ubyte.gz", idx_bytes({3}, {1, 10, 9}));
  EXPECT_THAT(error(),
              HasSubstr("t10k-labels-idx1-ubyte.gz: offset 9 (unpacked): label 10, allowed are 0 to 9"));
  write_gzip(folder_ / "t10k-labels-idx1-ubyte.gz", idx_bytes({2}, {1, 9}));
  EXPECT_THAT(error(), HasSubstr("t10k-labels-idx1-ubyte.gz: 2 labels for the 3 images"));
  write_gzip(folder_ / "t10k-images-idx3-ubyte.gz",
             idx_bytes({3, 27, 28}, std::vector<std::uint8_t>(3 * 27 * 28)));
  EXPECT_THAT(error(), HasSubstr("t10k-images-idx3-ubyte.gz: images of 27x28 pixels, wanted are 28x28"));
  std::filesystem::remove(folder_ / "t10k-images-idx3-ubyte.gz");
  EXPECT_THAT(error(),
              HasSubstr("t10k-images-idx3-ubyte.gz: not there; scripts/fetch-fashion-mnist fetches it"));
  EXPECT_THAT(refusal([] { find_fashion_mnist(std::string(300, 'x')); }),
              HasSubstr("xx/train-images-idx3-ubyte.gz: File name too long; scripts/fetch-fashion-mnist"));
}

TEST(FashionMnistFolder, FollowsTheEnvironment) {
  setenv("HOME", "/home/x", 1);
  unsetenv("STARLING_CACHE");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(fashion_mnist_folder(""), "/home/x/.cache/starling/fashion-mnist");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(fashion_mnist_folder(""), "/cache/starling/fashion-mnist");
  setenv("STARLING_CACHE", "/own", 1);
  EXPECT_EQ(fashion_mnist_folder(""), "/own/fashion-mnist");
  EXPECT_EQ(fashion_mnist_folder("/data"), "/data");
}

TEST_F(FashionMnistTest, BatchesAreNormalised) {
  const ImageSet train = load_fashion_mnist(folder_.path).train;
  const std::array<std::int64_t, 3> indices{4, 0, 17};
  const ImageBatch batch = make_batch(train, indices);
  EXPECT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{3, 1, 28, 28}));
  for (int b = 0; b < 3; ++b) {
    EXPECT_EQ(batch.labels[b].item<std::int64_t>(), indices[b] % 10);
    const double pixel = train.images[indices[b]][5][6].item<int>();
    EXPECT_NEAR(batch.images[b][0][5][6].item<double>(), (pixel / 255 - 0.2860) / 0.3530, 1e-6);
  }
}

TEST_F(FashionMnistTest, FlipsEachImageByItsSeedAlone) {
  const ImageSet train = load_fashion_mnist(folder_.path).train;
  std::vector<std::int64_t> indices(20);
  std::iota(indices.begin(), indices.end(), 0);
  const ImageBatch plain = make_batch(train, indices);
  int flipped = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const ImageBatch batch = make_batch(train, indices, seed);
    for (int i = 0; i < 20; ++i) {
      const bool turned = at::equal(batch.images[i], plain.images[i].flip(2));
      EXPECT_NE(turned, at::equal(batch.images[i], plain.images[i]));
      flipped += turned;
      // The same image alone in a batch is turned alike.
      const std::array<std::int64_t, 1> alone{i};
      EXPECT_TRUE(at::equal(make_batch(train, alone, seed).images[0], batch.images[i]));
    }
  }
  EXPECT_NEAR(flipped, 500, 80);  // 1000 draws with chance 1/2: standard deviation 16
}

}  // namespace
}  // namespace starling
