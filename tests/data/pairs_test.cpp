#include "starling/data/pairs.h"

#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "tests/data/data_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;

class PairsTest : public testing::Test {
 protected:
  std::string refused(const std::string& bytes) {
    spill(path_, bytes);
    return refusal<Error>([&] { Pairs(path_, 100); }).substr(path_.size());
  }
  // A file of one pair with these places and three tokens.
  static std::string file(std::uint64_t first, std::uint64_t second, std::uint64_t third,
                          std::uint64_t pairs = 1) {
    return "PAIR" + number_bytes(1, 4) + number_bytes(pairs, 8) + number_bytes(first, 8) +
           number_bytes(second, 8) + number_bytes(third, 8) + token_bytes({2, 3, 4});
  }

  const Folder folder_;
  const std::string path_ = folder_ / "train.pairs";
};

TEST_F(PairsTest, AreTheSentencesThatWereWritten) {
  const std::vector<Pair> written{{{5, 65535, 256}, {2}}, {{300}, {7, 8}}};
  spill(path_, pair_bytes(written));
  const Pairs pairs(path_, 65536);
  ASSERT_EQ(pairs.size(), 2);
  for (std::int64_t i = 0; i < 2; ++i) {
    std::vector<std::int64_t> source(static_cast<std::size_t>(pairs.source_length(i))),
        target(static_cast<std::size_t>(pairs.target_length(i)));
    pairs.copy_source(i, source);
    pairs.copy_target(i, target);
    EXPECT_EQ(source, written[static_cast<std::size_t>(i)].source);
    EXPECT_EQ(target, written[static_cast<std::size_t>(i)].target);
  }
}

TEST_F(PairsTest, RefusesWhatIsNoFileOfPairs) {
  const std::string good = pair_bytes({{{5, 6}, {7}}});
  EXPECT_EQ(refused(""), ": is empty");
  const std::string other = ": is no file of sentence pairs, as `starling pack translation` makes them";
  EXPECT_EQ(refused("PAIR"), other);
  EXPECT_EQ(refused("pair" + good.substr(4)), other);
  EXPECT_EQ(refused("PAIR" + std::string{"\0\0\0\1", 4} + good.substr(8)),
            ": has the high byte of its numbers first: write them with the low byte first");
  EXPECT_EQ(refused("PAIR" + number_bytes(2, 4) + good.substr(8)), ": has layout 2, known is 1");
  EXPECT_EQ(refused("PAIR" + number_bytes(1, 4) + number_bytes(0, 8)), ": has no pairs");
  EXPECT_EQ(refusal<Error>([&] { Pairs("/nowhere/train.pairs", 100); }),
            "/nowhere/train.pairs: cannot be opened: No such file or directory");
}

TEST_F(PairsTest, RefusesAFileThatBreaksOffOrHasOtherPlaces) {
  EXPECT_EQ(refused(file(0, 2, 3, 1ULL << 60)),
            ": breaks off: it has 46 bytes, too few for 1152921504606846976 pairs");
  for (const std::size_t size : {16, 31, 32, 39})  // before the end of the places
    EXPECT_EQ(refused(file(0, 2, 3).substr(0, size)),
              fmt::format(": breaks off: it has {} bytes, too few for 1 pairs", size));
  // Nothing behind the last page of the file is read.
  std::string ascending = "PAIR" + number_bytes(1, 4) + number_bytes(255, 8);
  for (std::uint64_t place = 0; ascending.size() < 4096; ++place) ascending += number_bytes(place, 8);
  EXPECT_EQ(refused(ascending), ": breaks off: it has 4096 bytes, too few for 255 pairs");
  EXPECT_EQ(refused(file(0, 2, 3).substr(0, 44)),
            ": breaks off: the target of pair 0 ends at place 3, but the file has 2 tokens");
  EXPECT_EQ(
      refused(file(0, 2, ~0ULL)),
      ": breaks off: the target of pair 0 ends at place 18446744073709551615, but the file has 3 tokens");
  EXPECT_EQ(refused(file(0, 2, 2)), ": the target of pair 0 is empty or begins behind its end");
  EXPECT_EQ(refused(file(0, 0, 3)), ": the source of pair 0 is empty or begins behind its end");
  EXPECT_EQ(refused(file(1, 2, 3)), ": its first sentence does not begin at place 0");
  EXPECT_EQ(refused(file(0, 1, 2)), ": has 2 bytes behind its 2 tokens");
  EXPECT_EQ(refused(file(0, 2, 3) + "x"), ": has 1 bytes behind its 3 tokens");
}

TEST_F(PairsTest, RefusesATokenOfAnotherVocabulary) {
  spill(path_, pair_bytes({{{5, 6}, {7}}, {{8, 100}, {1}}}));
  const Pairs pairs(path_, 100);
  std::vector<std::int64_t> one(1), two(2);
  pairs.copy_source(0, two);
  EXPECT_EQ(
      refusal<Error>([&] { pairs.copy_source(1, two); }),
      path_ +
          ": token 100 in the source of pair 1: allowed are 2 to 99 (model.vocabulary = 100): the file was "
          "made with another vocabulary");
  EXPECT_THAT(refusal<Error>([&] { pairs.copy_target(1, one); }),
              testing::HasSubstr("token 1 in the target of pair 1"));
}

}  // namespace
}  // namespace starling
