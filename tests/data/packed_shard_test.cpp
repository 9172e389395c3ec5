#include "starling/data/packed_shard.h"

#include <gmock/gmock.h>

#include "tests/data/image_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::HasSubstr;

std::string packed_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

const std::vector<std::string> kPackedClasses{"cat", "dog"};

class PackedShardTest : public testing::Test {
 protected:
  std::string refused(const std::string& bytes) {
    spill(path_, bytes);
    const std::string said = refusal<Error>([&] { PackedShard shard(path_); });
    EXPECT_THAT(said, testing::StartsWith(path_ + ": "));
    return said.substr(std::min(said.size(), path_.size() + 2));
  }

  const Folder folder_;
  const std::string path_ = folder_ / "train-00000.shard";
  const std::string good_ = shard_bytes({{1, "first"}, {0, ""}, {1, "third one"}}, kPackedClasses);
};

TEST_F(PackedShardTest, RefusesWhatIsNoShard) {
  EXPECT_EQ(refused(""), "is empty");
  EXPECT_EQ(refused("\xff\xd8\xff\xe0 a JPEG"), "is no shard of images: `starling pack images` makes them");
  std::string swapped = good_;
  std::reverse(swapped.begin(), swapped.begin() + 8);
  EXPECT_EQ(refused(swapped),
            "its numbers have the high byte first: pack the images again, with the low byte first");
  EXPECT_EQ(refused(good_.substr(0, 40)), "breaks off in its header: it has 40 bytes");
  for (std::size_t size = 64; size < good_.size(); ++size)
    EXPECT_EQ(refused(good_.substr(0, size)),
              "breaks off: it has " + std::to_string(size) + " bytes of " + std::to_string(good_.size()));
  EXPECT_EQ(refused(good_ + "!"), "has " + std::to_string(good_.size() + 1) + " bytes, but its header says " +
                                      std::to_string(good_.size()));
}

TEST_F(PackedShardTest, NoticesEveryDamagedByte) {
  const std::size_t data = 64, index = data + 14;  // "first" and "third one"
  for (std::size_t i = 0; i < good_.size(); ++i) {
    std::string damaged = good_;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    if (i < 8) {
      EXPECT_THAT(refused(damaged), HasSubstr("is no shard of images")) << i;
    } else if (i < data) {
      EXPECT_EQ(refused(damaged), "its header is damaged, or the file was never finished") << i;
    } else if (i >= index) {
      EXPECT_EQ(refused(damaged), "its index is damaged") << i;
    } else {
      spill(path_, damaged);
      const PackedShard shards(path_);
      const std::int64_t hit = i < data + 5 ? 0 : 2;
      EXPECT_EQ(refusal<Error>([&] { shards.jpeg(hit); }), "its checksum is wrong") << i;
      EXPECT_EQ(packed_text(shards.jpeg(2 - hit)), hit == 0 ? "third one" : "first");
    }
  }
}

// Every checksum is right.
TEST_F(PackedShardTest, RefusesNumbersOutside) {
  EXPECT_EQ(refused(shard_bytes({{2, "x"}}, kPackedClasses)),
            "image 0 has the label 2, but there are 2 classes");
  EXPECT_EQ(refused(shard_bytes({{0, "x"}}, kPackedClasses, 2, 2)), "says that it is shard 2 of 2");
  const auto changed = [&](std::size_t at, const std::string& bytes) {
    std::string text = good_;
    text.replace(at, bytes.size(), bytes);
    const std::size_t index = 64 + 14;
    if (at >= index) text.replace(56, 4, low_first(crc32c(bytes_of(std::string_view(text).substr(index)))));
    return text.replace(60, 4, low_first(crc32c(bytes_of(std::string_view(text).substr(0, 60)))));
  };
  const std::size_t end = good_.size();
  const std::string fit = " images do not fit an index from ";
  EXPECT_THAT(refused(changed(8, low_first<std::uint64_t>(4))), HasSubstr("4" + fit));
  EXPECT_THAT(refused(changed(8, low_first(~std::uint64_t{0}))), HasSubstr(fit));
  for (const std::uint64_t index : {std::uint64_t{0}, std::uint64_t{79}, ~std::uint64_t{0}})
    EXPECT_THAT(refused(changed(24, low_first(index))), HasSubstr(fit)) << index;
  for (const std::uint64_t names : {std::uint64_t{0}, std::uint64_t{end + 1}, ~std::uint64_t{0}})
    EXPECT_THAT(refused(changed(32, low_first(names))), HasSubstr(fit)) << names;
  EXPECT_EQ(refused(changed(48, low_first<std::uint64_t>(3))),
            "has the names of 2 classes, but its header says 3");
  EXPECT_EQ(refused(changed(end - 1, "!")), "the name of its last class breaks off");
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{76}, ~std::uint64_t{0}})
    EXPECT_THAT(refused(changed(64 + 14, low_first(offset))), HasSubstr("image 0 lies at ")) << offset;
  EXPECT_THAT(refused(changed(64 + 14 + 8, low_first(~std::uint32_t{0}))),
              HasSubstr("image 0 lies at 64 with "));
}

}  // namespace
}  // namespace starling
