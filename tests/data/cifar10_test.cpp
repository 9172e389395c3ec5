#include "starling/data/cifar10.h"

#include <array>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/data/data_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;

class Cifar10Test : public testing::Test {
 protected:
  // The paths of two files.
  std::vector<std::string> written() const {
    spill(folder_ / "a.bin", cifar10_bytes({{.label = 3, .seed = 1}, {.label = 9, .seed = 2}}));
    spill(folder_ / "b.bin", cifar10_bytes({{.label = 0, .seed = 3}}));
    return {folder_ / "a.bin", folder_ / "b.bin"};
  }
  std::string refused(const std::string& bytes) const {
    spill(folder_ / "c.bin", bytes);
    return refusal([&] { Cifar10Images({folder_ / "a.bin", folder_ / "c.bin"}); });
  }

  const Folder folder_;
  const Cifar10Images images_{written()};
};

TEST_F(Cifar10Test, ReadsTheRecordsOfAllFilesInOrder) {
  ASSERT_EQ(images_.size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(images_.label(i), (std::array{3, 9, 0})[static_cast<std::size_t>(i)]);
    const auto pixels = images_.pixels(i);
    ASSERT_EQ(pixels.size(), 3072U);
    for (std::size_t k = 0; k < 3072; ++k)
      ASSERT_EQ(static_cast<std::uint8_t>(pixels[k]), cifar10_pixel(i + 1, static_cast<std::int64_t>(k)));
  }
}

TEST_F(Cifar10Test, RefusesWhatIsNoCifar10) {
  const std::string path = folder_ / "c.bin", whole = cifar10_bytes({{.label = 3}, {.label = 9}});
  EXPECT_EQ(refused(""), path + ": is empty");
  EXPECT_EQ(refused(whole.substr(1)),
            path +
                ": has 6145 bytes, which are no whole images of 3073 bytes: the file breaks off, or is none "
                "of CIFAR-10's binary version");
  EXPECT_EQ(refused(cifar10_bytes({{.label = 3}, {.label = 10}})),
            path + ": offset 3073: label 10, allowed are 0 to 9");
  EXPECT_EQ(refused(cifar10_bytes({{.label = 200}})), path + ": offset 0: label 200, allowed are 0 to 9");
  EXPECT_EQ(refused(whole), "accepted");
  EXPECT_EQ(refusal([] { Cifar10Images({"/nowhere/a.bin"}); }),
            "/nowhere/a.bin: cannot be opened: No such file or directory");
}

TEST_F(Cifar10Test, NamesTheFirstFileThatIsMissing) {
  for (int i = 1; i <= 3; ++i) spill(folder_ / fmt::format("data_batch_{}.bin", i), "");
  const auto missing = [&] { return refusal([&] { find_cifar10(folder_.path); }); };
  const std::string rest = ": not there; it is in cifar-10-binary.tar.gz, CIFAR-10's binary version";
  EXPECT_EQ(missing(), folder_ / "data_batch_4.bin" + rest);
  for (int i = 4; i <= 5; ++i) spill(folder_ / fmt::format("data_batch_{}.bin", i), "");
  EXPECT_EQ(missing(), folder_ / "test_batch.bin" + rest);
  spill(folder_ / "test_batch.bin", "");
  EXPECT_EQ(missing(), "accepted");
  EXPECT_THAT(refusal([] { find_cifar10(std::string(300, 'x')); }),
              testing::HasSubstr("xx/data_batch_1.bin: File name too long; it is in"));
}

using Image = std::vector<int>;

// Plain loops. `right` and `down`: how far the part that is seen lies from the image.
Image moved(int right, int down, bool mirror) {
  Image result(3072);
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < 32; ++y) {
      for (int x = 0; x < 32; ++x) {
        const int from_x = (mirror ? 31 - x : x) + right, from_y = y + down;
        if (from_x < 0 || from_x > 31 || from_y < 0 || from_y > 31) continue;
        result[static_cast<std::size_t>((c * 32 + y) * 32 + x)] =
            cifar10_pixel(2, (c * 32 + from_y) * 32 + from_x);
      }
    }
  }
  return result;
}

TEST_F(Cifar10Test, ShiftsAreThoseOfRandomCropAndFlip) {
  const auto drawn = [&](const RandomShifts& shifts, std::uint64_t seed) {
    std::vector<std::uint8_t> image(3072, 77);
    shift_image(images_.pixels(1), shifts, seed, image);
    return Image(image.begin(), image.end());
  };
  std::map<Image, int> seen;
  for (int right = -1; right <= 1; ++right) {
    for (int down = -1; down <= 1; ++down) {
      for (const bool mirror : {false, true}) seen[moved(right, down, mirror)] = 0;
    }
  }
  ASSERT_EQ(seen.size(), 18U);
  for (std::uint64_t seed = 0; seed < 1800; ++seed) {
    const auto found = seen.find(drawn({.pad = 1}, seed));
    ASSERT_NE(found, seen.end()) << seed;
    ++found->second;
  }
  // Each with the same chance: 100, with a standard deviation of 9.7.
  for (const auto& [image, count] : seen) EXPECT_NEAR(count, 100, 45);

  EXPECT_EQ(drawn({}, 5), drawn({}, 5));
  EXPECT_NE(drawn({}, 5), drawn({}, 6));
  EXPECT_EQ(drawn({.pad = 0, .flip = false}, 6), moved(0, 0, false));
  // The farthest shifts of `pad` are reached, and none beyond: 32 leaves nothing of some images.
  int black = 0;
  for (std::uint64_t seed = 0; seed < 500; ++seed) black += drawn({.pad = 32}, seed) == Image(3072);
  EXPECT_GT(black, 0);
}

}  // namespace
}  // namespace starling
