#include "starling/data/tar.h"

#include <utility>

#include <gmock/gmock.h>

#include "tests/data/image_files.h"
#include "tests/data/tar_files.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using namespace testing_data;
using testing::ElementsAre;
using testing::Pair;
using testing::StartsWith;

const std::string kGnuMagic("ustar  \0", 8);

std::vector<std::pair<std::string, std::string>> files_of(const std::string& archive) {
  TarReader reader("a.tar", bytes_of(archive));
  std::vector<std::pair<std::string, std::string>> files;
  while (const auto file = reader.next())
    files.emplace_back(file->name,
                       std::string(reinterpret_cast<const char*>(file->bytes.data()), file->bytes.size()));
  return files;
}

std::string refused(const std::string& archive) {
  const std::string said = refusal<Error>([&] { files_of(archive); });
  EXPECT_THAT(said, StartsWith("a.tar: "));
  return said.substr(std::min<std::size_t>(said.size(), 7));
}

TEST(TarReader, FindsFilesAndLeavesFoldersOut) {
  const std::string block(512, 'b');
  EXPECT_THAT(
      files_of(tar_bytes({{"a", "one"}, {"d/", "", '5'}, {"d/b", block}, {"empty", ""}, {"old", "x", '\0'}})),
      ElementsAre(Pair("a", "one"), Pair("d/b", block), Pair("empty", ""), Pair("old", "x")));
  EXPECT_TRUE(files_of(tar_end()).empty());
  EXPECT_THAT(files_of(tar_bytes({{"a", "one"}}) + std::string(9 * 512, '\0')),
              ElementsAre(Pair("a", "one")));
}

TEST(TarReader, JoinsLongNames) {
  const std::string full(100, 'n'), longer(300, 'l');
  EXPECT_THAT(
      files_of(tar_bytes({{full, "1"},
                          {.name = "b", .bytes = "2", .prefix = "some/where"},
                          {"pax", pax_record("path", longer) + pax_record("mtime", "1.5"), 'x'},
                          {"short", "3"},
                          {"after", "4"},
                          {.name = "././@LongLink", .bytes = longer + '\0', .type = 'L', .magic = kGnuMagic},
                          {.name = "short", .bytes = "5", .prefix = "a time", .magic = kGnuMagic},
                          {.name = "c", .bytes = "6", .prefix = "a time", .magic = kGnuMagic}})),
      ElementsAre(Pair(full, "1"), Pair("some/where/b", "2"), Pair(longer, "3"), Pair("after", "4"),
                  Pair(longer, "5"), Pair("c", "6")));
}

TEST(TarReader, ReadsSizesInEveryForm) {
  const std::string high("\x80\0\0\0\0\0\0\0\0\0\0\3", 12);
  EXPECT_THAT(files_of(tar_bytes({{.name = "a", .bytes = "one", .size = "          3 "},
                                  {.name = "b", .bytes = "two", .size = high},
                                  {"x", pax_record("size", "3"), 'x'},
                                  {.name = "c", .bytes = "six", .size = "00000000000"},
                                  {.name = "d", .bytes = "", .size = "00000000000"},
                                  {.name = "e", .bytes = "", .type = '5', .size = "00000077777"}})),
              ElementsAre(Pair("a", "one"), Pair("b", "two"), Pair("c", "six"), Pair("d", "")));
}

TEST(TarReader, RefusesWhatBreaksOff) {
  const std::string good = tar_bytes({{"a", std::string(600, 'a')}, {"b", ""}});
  for (std::size_t size = 0; size < good.size(); ++size)
    EXPECT_THAT(refused(good.substr(0, size)), StartsWith("breaks off")) << size;
  EXPECT_EQ(refused(good.substr(0, 700)),
            "breaks off: the member at byte 0 has 600 bytes, of which 188 are there");
  EXPECT_EQ(refused(good.substr(0, 2048)), "breaks off at byte 2048: its end is missing");
  EXPECT_EQ(refused(good.substr(0, 2560)), "breaks off in its end, which is 1024 bytes, at byte 2048");
  EXPECT_EQ(refused(good + good), "goes on behind its end at byte 2048: archives cannot be joined by cat");
}

TEST(TarReader, NoticesEveryDamagedByteOfAHeader) {
  const std::string good = tar_bytes({{"a", "one"}, {"b", "two"}});
  for (std::size_t i = 1024; i < 1536; ++i) {
    if (i >= 1024 + 148 && i < 1024 + 156) continue;  // the sum, which may have spaces in place of zeros
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x10);
    if (i >= 1024 + 257 && i < 1024 + 263) {
      EXPECT_EQ(refused(damaged), "there is no tar header at byte 1024") << i;
    } else {
      EXPECT_EQ(refused(damaged), "its header at byte 1024 is damaged") << i;
    }
  }
  EXPECT_EQ(refused(std::string(512, 'a')), "is no tar archive");
  EXPECT_EQ(refused("\x1f\x8b" + std::string(600, 'z')), "is no tar archive");
}

TEST(TarReader, RefusesWhatItDoesNotRead) {
  const auto last = [](const TarMember& member) { return refused(tar_bytes({{"a", "one"}, member})); };
  EXPECT_EQ(last({"l", "", '2'}), "\"l\" is no plain file or folder, but of type \"2\"");
  EXPECT_EQ(last({"l", "", '1'}), "\"l\" is no plain file or folder, but of type \"1\"");
  EXPECT_EQ(last({"s", "", 'S'}), "\"s\" is no plain file or folder, but of type \"S\"");
  EXPECT_EQ(last({"s", "", '\x07'}), "\"s\" is no plain file or folder, but of type \"\\u0007\"");
  EXPECT_EQ(last({"x", pax_record("GNU.sparse.major", "1"), 'x'}),
            "has a sparse file at byte 1024: only plain files and folders are read");
  EXPECT_EQ(last({"x", pax_record("path", "p"), 'x'}), "ends at byte 2048, where a file is announced");
  EXPECT_EQ(last({"x", pax_record("path", "p"), 'g'}), "gives all files one name or size at byte 1024");
  EXPECT_THAT(files_of(tar_bytes({{"x", pax_record("comment", "c"), 'g'}, {"a", "one"}})),
              ElementsAre(Pair("a", "one")));
  for (const char* size : {"8", "-1", "1x", "            ", "\x81", "\xff"})
    EXPECT_EQ(last({.name = "a", .bytes = "", .size = size}), "its header at byte 1024 has no size") << size;
  const std::string huge = "\x80" + std::string(11, '\xff');
  EXPECT_EQ(last({.name = "a", .bytes = "", .size = huge}), "its header at byte 1024 has no size");
  EXPECT_EQ(last({.name = "a", .bytes = "", .size = "77777777777"}),
            "breaks off: the member at byte 1024 has 8589934591 bytes, of which 1024 are there");
}

TEST(TarReader, RefusesDamagedExtendedHeaders) {
  const auto pax = [](const std::string& records) {
    return refused(tar_bytes({{"x", records, 'x'}, {"a", "one"}}));
  };
  for (const char* records :
       {"x", "7", "7 ", "0 path=a\n", "11 path=a\n", "8 path=a\n", "99 path=a\n", "9 path=a ", "-9 path=a\n",
        "99999999999999999999 path=a\n", "2 \n", "1 ", "9 path=a\n5"})
    EXPECT_EQ(pax(records), "its extended header at byte 0 is damaged") << records;
  EXPECT_EQ(pax("8 paths\n"), "its extended header at byte 0 has a key without a value");
  EXPECT_EQ(pax(pax_record("size", "1e3")), "its extended header at byte 0 has the size \"1e3\"");
  EXPECT_EQ(pax(pax_record("size", "18446744073709551615")),
            "breaks off: the member at byte 1024 has 18446744073709551615 bytes, of which 1536 are there");
  EXPECT_THAT(files_of(tar_bytes({{"x", "9 path=b\n", 'x'}, {"a", "one"}})), ElementsAre(Pair("b", "one")));
}

}  // namespace
}  // namespace starling
