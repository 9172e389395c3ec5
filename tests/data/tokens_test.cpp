#include "starling/data/tokens.h"

#include <vector>

#include <gmock/gmock.h>

#include "tests/data/data_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::ElementsAre;

class TokensTest : public testing::Test {
 protected:
  std::string refused(const std::string& bytes, std::int64_t vocabulary = 50257) {
    spill(path_, bytes);
    return refusal<Error>([&] { Tokens(path_, vocabulary); }).substr(path_.size());
  }

  const Folder folder_;
  const std::string path_ = folder_ / "train.bin";
};

TEST_F(TokensTest, AreTwoBytesEachTheLowOneFirst) {
  spill(path_, token_bytes({5, 0, 256, 50256, 65535}));
  const Tokens tokens(path_, 65536);
  ASSERT_EQ(tokens.size(), 5);
  std::vector<std::int64_t> some(3), all(5);
  tokens.copy(2, some);
  EXPECT_THAT(some, ElementsAre(256, 50256, 65535));
  tokens.copy(0, all);
  EXPECT_THAT(all, ElementsAre(5, 0, 256, 50256, 65535));
}

TEST_F(TokensTest, AsTextAreNumbersBetweenSpacesAndLineBreaks) {
  EXPECT_THAT(tokens_of_text(" 2 41  9\n7\n", 2, 42, "stdin:1"), ElementsAre(2, 41, 9, 7));
  EXPECT_TRUE(tokens_of_text(" \n", 2, 42, "stdin:1").empty());
  for (const std::string word : {"1", "42", "-3", "5x", "5,6", "99999999999999999999"})
    EXPECT_EQ(refusal<Error>([&] { tokens_of_text("3 " + word + " 4", 2, 42, "stdin:1"); }),
              "stdin:1: \"" + word + "\": wants tokens from 2 to 41");
  EXPECT_LT(refusal<Error>([] { tokens_of_text(std::string(100'000, '7'), 2, 42, "stdin:1"); }).size(), 200);
}

TEST_F(TokensTest, RefusesWhatIsNoTextOfTokens) {
  EXPECT_EQ(refused(""), ": is empty");
  EXPECT_EQ(refused("abc"),
            ": has 3 bytes, which are no whole tokens of 2 bytes: the file breaks off, or is none of "
            "tokens");
  EXPECT_EQ(refused(std::string{"\x00\xff\x01\x00", 4}),
            ": its tokens have the high byte first: write them with the low byte first (numpy's \"<u2\")");
  EXPECT_EQ(refusal<Error>([&] { Tokens("/nowhere/train.bin", 2); }),
            "/nowhere/train.bin: cannot be opened: No such file or directory");
  EXPECT_EQ(refusal<Error>([&] { Tokens(folder_.path, 2); }), folder_.path + ": is not a file");
}

TEST_F(TokensTest, RefusesATokenOfAnotherVocabulary) {
  spill(path_, token_bytes({1, 2, 300, 4}));
  const Tokens tokens(path_, 300);
  std::vector<std::int64_t> two(2);
  tokens.copy(0, two);
  EXPECT_EQ(
      refusal<Error>([&] { tokens.copy(1, two); }),
      path_ +
          ": token 300 at place 2 is not in the vocabulary of 300 tokens: the file was made with another "
          "one (model.vocabulary)");
}

}  // namespace
}  // namespace starling
