#include "starling/data/tar_shard.h"

#include <gmock/gmock.h>

#include "tests/data/image_files.h"
#include "tests/data/tar_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;

class TarShardTest : public testing::Test {
 protected:
  std::string refused(const std::vector<TarMember>& members) {
    spill(path_, tar_bytes(members));
    const std::string said = refusal<Error>([&] { TarShard shard(path_); });
    EXPECT_THAT(said, testing::StartsWith(path_ + ": "));
    return said.substr(std::min(said.size(), path_.size() + 2));
  }

  const Folder folder_;
  const std::string path_ = folder_ / "train-000000.tar";
};

TEST_F(TarShardTest, HoldsTheImagesAndLabelsOfItsSamples) {
  spill(path_, tar_bytes({{"README", "of no sample"},
                          {".hidden.jpg", "nor this"},
                          {"x/a.jpg", "first"},
                          {"x/a.cls", "3"},
                          {"x/a.json", "{}"},
                          {"y.d/a.CLS", "0\n"},  // the label may come first
                          {"y.d/a.seg.jpg", "no image: its ending is seg.jpg"},
                          {"y.d/a.JPEG", "second"},
                          {"b.txt", "a sample without an image"},
                          {"c.cls", "1048575 \r\n"},
                          {"c.jpg", ""}}));
  const TarShard shard(path_);
  std::vector<std::string> images, names;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < shard.size(); ++i) {
    const auto jpeg = shard.jpeg(i);
    images.emplace_back(reinterpret_cast<const char*>(jpeg.data()), jpeg.size());
    labels.push_back(shard.label(i));
    names.push_back(shard.name(i));
  }
  EXPECT_THAT(images, testing::ElementsAre("first", "second", ""));
  EXPECT_THAT(labels, testing::ElementsAre(3, 0, 1048575));
  EXPECT_THAT(names, testing::ElementsAre(path_ + ": \"x/a.jpg\"", path_ + ": \"y.d/a.JPEG\"",
                                          path_ + ": \"c.jpg\""));
}

TEST_F(TarShardTest, RefusesInOneLine) {
  EXPECT_EQ(refused({}), "has no image NAME.jpg with its label NAME.cls");
  EXPECT_EQ(refused({{"a.png", "x"}}), "has no image NAME.jpg with its label NAME.cls");
  EXPECT_EQ(refused({{"a.jpg", "x"}, {"b.cls", "1"}}),
            "\"a.jpg\" has no file .cls beside it, with its label");
  EXPECT_EQ(refused({{"a.jpg", "x"}, {"b.txt", "y"}, {"a.cls", "1"}}),
            "\"a.jpg\" has no file .cls beside it, with its label");
  EXPECT_EQ(refused({{"a.cls", "1"}, {"a.png", "x"}}), "\"a.cls\" has no file .jpg beside it");
  EXPECT_EQ(refused({{"a.jpg", "x"}, {"a.jpeg", "x"}}), "\"a.jpeg\" is the second of its kind in its sample");
  EXPECT_EQ(refused({{"a.jpg", "x"}, {"a.cls", "1"}, {"a.cls", "1"}}),
            "\"a.cls\" is the second of its kind in its sample");
  for (const char* label : {"", "\n", "cat", "-1", "+1", "1.0", "0x1", " 1", "1 2", "1048576", "4294967296"})
    EXPECT_EQ(refused({{"a.jpg", "x"}, {"a.cls", label}}), "\"a.cls\" holds no label from 0 to 1048575")
        << label;
  EXPECT_EQ(refused({{"a.jpg", "x"}, {"a.cls", "1", '2'}}),
            "\"a.cls\" is no plain file or folder, but of type \"2\"");
  spill(path_, "");
  EXPECT_EQ(refusal<Error>([&] { TarShard shard(path_); }), path_ + ": is empty");
}

}  // namespace
}  // namespace starling
