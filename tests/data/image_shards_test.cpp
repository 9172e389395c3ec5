#include "starling/data/image_shards.h"

#include <gmock/gmock.h>

#include "tests/data/image_files.h"
#include "tests/data/tar_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::ElementsAre;

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::vector<std::string> kClasses{"cat", "dog"};

class ImageShardsTest : public testing::Test {
 protected:
  void spill_shard(int number, const std::string& bytes) {
    spill(folder_ / "train-0000" + std::to_string(number) + ".shard", bytes);
  }
  void spill_tar(const std::string& number, const std::string& image, const std::string& label = "0") {
    spill(folder_ / "train-" + number + ".tar",
          tar_bytes({{image + ".jpg", image}, {image + ".cls", label}}));
  }

  const Folder folder_;
};

TEST_F(ImageShardsTest, HoldImagesLabelsAndClasses) {
  spill_shard(0, shard_bytes({{1, "first"}, {0, ""}, {1, "third one"}}, kClasses, 0, 3));
  spill_shard(1, shard_bytes({}, kClasses, 1, 3));
  spill_shard(2, shard_bytes({{0, "last"}}, kClasses, 2, 3));
  const ImageShards shards(folder_.path, "train");
  ASSERT_EQ(shards.size(), 4);
  EXPECT_THAT(shards.classes(), ElementsAre("cat", "dog"));
  std::vector<std::string> images;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < shards.size(); ++i) {
    images.push_back(text_of(shards.jpeg(i)));
    labels.push_back(shards.label(i));
  }
  EXPECT_THAT(images, ElementsAre("first", "", "third one", "last"));
  EXPECT_THAT(labels, ElementsAre(1, 0, 1, 0));
  EXPECT_EQ(shards.name(2), folder_ / "train-00000.shard: image 2 (\"dog\")");
  EXPECT_EQ(shards.name(3), folder_ / "train-00002.shard: image 0 (\"cat\")");
}

TEST_F(ImageShardsTest, RefusesShardsThatAreNotOfOnePacking) {
  const auto refused_pair = [&](const std::string& second) {
    spill_shard(0, shard_bytes({{0, "x"}}, kClasses, 0, 2));
    spill_shard(1, second);
    return refusal<Error>([&] { ImageShards(folder_.path, "train"); }).substr(folder_.path.size());
  };
  EXPECT_EQ(refused_pair(shard_bytes({}, kClasses, 0, 2)),
            "/train-00001.shard: says that it is shard 0 of 2, and should be 1 of 2");
  EXPECT_EQ(refused_pair(shard_bytes({}, kClasses, 1, 3)),
            "/train-00001.shard: says that it is shard 1 of 3, and should be 1 of 2");
  EXPECT_EQ(refused_pair(shard_bytes({}, {"cat"}, 1, 2)),
            "/train-00001.shard: has other classes than " + folder_.path + "/train-00000.shard");
  spill_shard(0, shard_bytes({}, kClasses));
  EXPECT_EQ(refusal<Error>([&] { ImageShards(folder_.path, "train"); }),
            folder_.path + "/train-*.shard: there is no image in them");
  spill_shard(0, shard_bytes({{0, "x"}}, kClasses, 0, 2));
  std::filesystem::remove(folder_ / "train-00001.shard");
  EXPECT_EQ(refusal<Error>([&] { ImageShards(folder_.path, "train"); }),
            folder_.path + "/train-00001.shard: cannot be opened: No such file or directory");
  EXPECT_EQ(refusal<Error>([&] { find_image_shards(folder_.path, "val"); }),
            folder_.path +
                "/val-00000.shard: not there, and no val-0.tar; `starling pack images` makes shards, "
                "data.dir names the folder");
  EXPECT_NO_THROW(find_image_shards(folder_.path, "train"));
}

TEST_F(ImageShardsTest, HoldTheImagesOfTarArchivesInTheOrderOfTheirNumbers) {
  for (int i = 0; i < 11; ++i)
    spill_tar(std::to_string(i), "image " + std::to_string(i), std::to_string(3 * i));
  for (const char* other :
       {"train-x.tar", "train-1x.tar", "train-.tar", "train-2.tar.gz", "train.tar", "val-0.tar"})
    spill(folder_ / other, "another");
  EXPECT_NO_THROW(find_image_shards(folder_.path, "train"));
  const ImageShards shards(folder_.path, "train");
  ASSERT_EQ(shards.size(), 11);
  EXPECT_TRUE(shards.classes().empty());
  EXPECT_EQ(shards.highest_label(), 30);
  for (int i = 0; i < 11; ++i) {
    EXPECT_EQ(text_of(shards.jpeg(i)), "image " + std::to_string(i));
    EXPECT_EQ(shards.label(i), 3 * i);
  }
  EXPECT_EQ(shards.name(10), folder_ / "train-10.tar: \"image 10.jpg\"");
}

TEST_F(ImageShardsTest, RefuseTarArchivesThatAreNotOneSet) {
  const auto refused = [&] {
    const std::string said = refusal<Error>([&] { ImageShards(folder_.path, "train"); });
    EXPECT_EQ(refusal<Error>([&] { find_image_shards(folder_.path, "train"); }), said);
    return said;
  };
  spill_tar("000001", "b");
  EXPECT_EQ(refused(), folder_ / "train-*.tar: number 0 is missing");
  spill_tar("000000", "a");
  spill_tar("000003", "d");
  EXPECT_EQ(refused(), folder_ / "train-*.tar: number 2 is missing");
  spill_tar("000002", "c");
  spill_tar("2", "c");
  EXPECT_THAT(refused(),
              testing::AllOf(testing::HasSubstr("/train-2.tar"), testing::HasSubstr("/train-000002.tar"),
                             testing::EndsWith(" have the same number")));
  std::filesystem::remove(folder_ / "train-2.tar");
  spill_shard(0, shard_bytes({{0, "x"}}, kClasses));
  EXPECT_EQ(refused(), folder_ / "train-000000.tar and " + folder_ / "train-00000.shard" +
                           " are both there: remove one kind");
}

}  // namespace
}  // namespace starling
