#include "starling/data/image_loader.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include "starling/data/jpeg.h"
#include "tests/data/image_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::ElementsAre;
using testing::StartsWith;

constexpr int kImages = 40, kSize = 16;

ImageView view_of(std::int64_t image, ImageSize size) {
  return random_view(size, {}, static_cast<std::uint64_t>(image));
}

class ImageLoaderTest : public testing::Test {
 protected:
  std::shared_ptr<const ImageShards> shards(const std::vector<int>& broken = {}) {
    std::vector<LabelledJpeg> images;
    for (int i = 0; i < kImages; ++i)
      images.push_back(
          {static_cast<std::uint32_t>(i % 3), jpeg_bytes({.width = 40 + i, .height = 50, .seed = i})});
    for (const int i : broken) images[static_cast<std::size_t>(i)].jpeg.resize(300);
    spill(folder_ / "train-00000.shard", shard_bytes(images, {"a", "b", "c"}));
    return std::make_shared<const ImageShards>(folder_.path, "train");
  }
  static std::vector<std::int64_t> all() {
    std::vector<std::int64_t> images(kImages);
    std::iota(images.begin(), images.end(), 0);
    return images;
  }

  const Folder folder_;
};

TEST_F(ImageLoaderTest, GivesTheViewsWithAnyNumberOfThreads) {
  const auto data = shards();
  at::Tensor expected;
  for (const int threads : {1, 2, 7}) {
    SCOPED_TRACE(threads);
    ImageLoader loader(threads);
    auto whole = loader.start(data, all(), kSize, view_of), two = loader.start(data, {5, 3}, kSize, view_of),
         none = loader.start(data, {}, kSize, view_of);
    EXPECT_EQ(none.get().images.size(0), 0);
    const DecodedImages pair = two.get(), images = whole.get();
    ASSERT_EQ(images.images.sizes(), (std::vector<std::int64_t>{kImages, 3, kSize, kSize}));
    EXPECT_TRUE(images.images.is_contiguous(at::MemoryFormat::ChannelsLast));
    EXPECT_THAT(images.skipped, testing::IsEmpty());
    for (std::int64_t i = 0; i < kImages; ++i) EXPECT_EQ(images.labels[i].item<std::int64_t>(), i % 3);
    if (!expected.defined()) expected = images.images;
    EXPECT_TRUE(at::equal(images.images, expected));
    EXPECT_TRUE(at::equal(pair.images[0], expected[5]));
    EXPECT_TRUE(at::equal(pair.images[1], expected[3]));
  }
  JpegDecoder decoder;
  std::vector<std::uint8_t> out(kSize * kSize * 3);
  decoder.decode(view_of(7, decoder.open(data->jpeg(7))), kSize, out.data());
  const at::Tensor seventh = expected[7].permute({1, 2, 0}).contiguous();
  EXPECT_TRUE(std::equal(out.begin(), out.end(), seventh.data_ptr<std::uint8_t>()));
}

TEST_F(ImageLoaderTest, LeavesBrokenImagesOutAndNamesThem) {
  ImageLoader loader(2);
  const DecodedImages whole = loader.start(shards(), all(), kSize, view_of).get();
  const auto data = shards({0, 4, kImages - 1});
  const DecodedImages rest = loader.start(data, all(), kSize, view_of).get();
  const std::string path = folder_ / "train-00000.shard";
  EXPECT_THAT(rest.skipped, ElementsAre(StartsWith(path + ": image 0 (\"a\"): broken JPEG: "),
                                        StartsWith(path + ": image 4 (\"b\"): broken JPEG: "),
                                        StartsWith(path + ": image 39 (\"a\"): broken JPEG: ")));
  ASSERT_EQ(rest.images.size(0), kImages - 3);
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < kImages; ++i) {
    if (i == 0 || i == 4 || i == kImages - 1) continue;
    EXPECT_TRUE(at::equal(rest.images[row], whole.images[i])) << i;
    EXPECT_EQ(rest.labels[row++].item<std::int64_t>(), i % 3);
  }
  const DecodedImages nothing = loader.start(data, {4}, kSize, view_of).get();
  EXPECT_EQ(nothing.images.size(0), 0);
  EXPECT_EQ(nothing.labels.size(0), 0);
}

TEST_F(ImageLoaderTest, PassesOnWhatIsNoFaultOfAnImage) {
  ImageLoader loader(2);
  auto failing = loader.start(shards(), all(), kSize, [](std::int64_t image, ImageSize size) {
    if (image == 9) throw std::bad_alloc();
    return view_of(image, size);
  });
  EXPECT_THROW(failing.get(), std::bad_alloc);
}

TEST_F(ImageLoaderTest, SaysThatThereIsNoThreadLeft) {
  const auto refused = [] {
    const rlimit none{};
    if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0) std::_Exit(2);  // root has no limit
    setrlimit(RLIMIT_NPROC, &none);
    std::fputs(refusal<Error>([] { const ImageLoader loader(3); }).c_str(), stderr);
    std::_Exit(1);
  };
  EXPECT_EXIT(refused(), testing::ExitedWithCode(1),
              "data.threads = 3: only 0 could be started: Resource temporarily unavailable");
}

// Nothing waits for images that nobody wants any more.
TEST_F(ImageLoaderTest, EndsWithWorkLeft) {
  const auto data = shards();
  std::vector<std::future<DecodedImages>> futures;
  {
    ImageLoader loader(2);
    for (int i = 0; i < 200; ++i) futures.push_back(loader.start(data, all(), kSize, view_of));
  }
  EXPECT_THROW(futures.back().get(), std::future_error);
}

}  // namespace
}  // namespace starling
