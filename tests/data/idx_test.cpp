#include "starling/data/idx.h"

#include <numeric>

#include <gmock/gmock.h>

#include "tests/data/data_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::HasSubstr;

std::string error_of(const std::string& path, int dimensions) {
  return refusal([&] { read_idx(path, dimensions); });
}

class IdxTest : public testing::Test {
 protected:
  IdxTest() { std::iota(data_.begin(), data_.end(), std::uint8_t{100}); }

  std::string error_of_bytes(std::string_view bytes) {
    write_gzip(path_, bytes);
    return error_of(path_, 3);
  }

  const Folder folder_;
  const std::string path_ = folder_ / "a.gz";
  std::vector<std::uint8_t> data_ = std::vector<std::uint8_t>(2 * 3 * 4);
};

TEST_F(IdxTest, ReadsShapeAndData) {
  write_gzip(path_, idx_bytes({2, 3, 4}, data_));
  const Idx idx = read_idx(path_, 3);
  EXPECT_EQ(idx.shape, (std::vector<std::int64_t>{2, 3, 4}));
  EXPECT_EQ(idx.data, data_);
}

TEST_F(IdxTest, ReadsMoreThanOnePiece) {
  std::vector<std::uint8_t> large(9'000'001);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::uint8_t>(i * i >> 7);
  write_gzip(path_, idx_bytes({9'000'001}, large));
  EXPECT_EQ(read_idx(path_, 1).data, large);
}

TEST_F(IdxTest, RefusesHeadersThatDoNotFit) {
  EXPECT_THAT(error_of_bytes(idx_bytes({24}, data_)),
              HasSubstr("a.gz: offset 4 (unpacked): starts with 00 00 08 01, not 00 00 08 03"));
  std::string floats = idx_bytes({2, 3, 4}, data_);
  floats[2] = 0x0D;
  EXPECT_THAT(error_of_bytes(floats), HasSubstr("starts with 00 00 0d 03"));
  EXPECT_THAT(error_of_bytes(idx_bytes({2, 0, 4}, data_)),
              HasSubstr("offset 12 (unpacked): dimension 1 is 0"));
  EXPECT_THAT(error_of_bytes(idx_bytes({0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}, data_)),
              HasSubstr("dimension 0 is 4294967295"));
  EXPECT_THAT(error_of_bytes(idx_bytes({1 << 15, 1 << 10, 1 << 10}, data_)),
              HasSubstr("dimension 2 is 1024"));
  EXPECT_THAT(error_of_bytes(idx_bytes({2, 3, 4}, data_).substr(0, 6)), HasSubstr("the header breaks off"));
  EXPECT_THAT(error_of_bytes(""), HasSubstr("the header breaks off"));
}

TEST_F(IdxTest, RefusesTooLittleAndTooMuchData) {
  const std::string bytes = idx_bytes({2, 3, 4}, data_);
  EXPECT_THAT(error_of_bytes(bytes.substr(0, bytes.size() - 1)),
              HasSubstr("the data breaks off after 23 of 24 bytes"));
  EXPECT_THAT(error_of_bytes(bytes + "x"), HasSubstr("more data than the 24 bytes that the header tells of"));
}

TEST_F(IdxTest, RefusesFilesThatAreNotGzip) {
  spill(path_, idx_bytes({2, 3, 4}, data_));
  EXPECT_THAT(error_of(path_, 3), HasSubstr("not a gzip file"));
  spill(path_, "");
  EXPECT_NE(error_of(path_, 3), "accepted");
  EXPECT_THAT(error_of(folder_ / "none.gz", 3),
              HasSubstr("none.gz: cannot be opened: No such file or directory"));
  EXPECT_EQ(error_of(folder_.path, 3), folder_.path + ": offset 0 (unpacked): Is a directory");
}

TEST_F(IdxTest, RefusesEveryTruncation) {
  write_gzip(path_, idx_bytes({2, 3, 4}, data_));
  const std::string whole = slurp(path_);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    spill(path_, whole.substr(0, size));
    EXPECT_NE(error_of(path_, 3), "accepted") << size << " of " << whole.size();
  }
  spill(path_, whole.substr(0, whole.size() - 1));  // all data and half a checksum
  EXPECT_EQ(error_of(path_, 3), path_ + ": offset 40 (unpacked): the file breaks off");
}

// gzip ignores its header's time stamp and the bits (at most 7) between the data and its checksum.
// A flipped bit anywhere else must be detected, and none may change the data.
TEST_F(IdxTest, RefusesEveryFlippedBitOfTheData) {
  write_gzip(path_, idx_bytes({2, 3, 4}, data_));
  const std::string whole = slurp(path_);
  constexpr std::size_t kGzipHeader = 10;
  int unseen = 0;
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    spill(path_, bytes);
    if (error_of(path_, 3) != "accepted") continue;
    EXPECT_EQ(read_idx(path_, 3).data, data_) << "bit " << bit;
    if (bit / 8 >= kGzipHeader) ++unseen;
  }
  EXPECT_LE(unseen, 7);
}

}  // namespace
}  // namespace starling
