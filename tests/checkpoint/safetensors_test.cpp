#include "starling/checkpoint/safetensors.h"

#include <cstring>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "starling/core/crc32c.h"
#include "tests/checkpoint/folder.h"

namespace starling {
namespace {

using testing::HasSubstr;

TEST(Safetensors, WhatIsWrittenIsRead) {
  const Folder folder;
  const Digest digest = write_small(folder / "a", 7);
  const std::string bytes = slurp(folder / "a");
  EXPECT_EQ(digest, (Digest{bytes.size(), crc32c(std::as_bytes(std::span(bytes)))}));
  const SafetensorsReader file(folder / "a");
  EXPECT_EQ(file.digest(), digest);
  EXPECT_EQ(file.metadata(), (Metadata{{"format", "test"}}));
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.tensors()[0].name, "steps");  // wide elements first
  const TensorInfo* weight = file.find("model.weight");
  ASSERT_NE(weight, nullptr);
  EXPECT_EQ(weight->shape, (std::vector<std::int64_t>{2, 2}));
  float values[4] = {};
  file.read(*weight, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(values[0], 8.5F);
  EXPECT_EQ(values[3], 1e-30F);
  EXPECT_EQ(std::memcmp(values, bytes.data() + file.offset(*weight), sizeof values), 0);
  EXPECT_EQ(file.offset(*weight) % 8, 0U);
  EXPECT_EQ(file.find("model.empty")->bytes(), 0U);
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(refusal([&] { file.read(*weight, std::as_writable_bytes(std::span(values, 3))); }),
            (folder / "a") + ": a tensor is read into memory of another size");
}

TEST(Safetensors, NumbersThatAreNotFiniteAreLegal) {
  const Folder folder;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  SafetensorsWriter writer(folder / "a", {{.name = "x", .dtype = "F32", .shape = {1}}}, {});
  writer.write(std::as_bytes(std::span(&nan, 1)));
  writer.finish();
  float read = 0;
  const SafetensorsReader file(folder / "a");
  file.read(file.tensors()[0], std::as_writable_bytes(std::span(&read, 1)));
  EXPECT_NE(read, read);
}

TEST(Safetensors, AWriterThatIsGivenTooLittleSaysSo) {
  const Folder folder;
  SafetensorsWriter writer(folder / "a", {{.name = "x", .dtype = "F32", .shape = {2}}}, {});
  EXPECT_THAT(refusal([&] { writer.finish(); }), HasSubstr("the header says"));
  EXPECT_THAT(refusal([&] { SafetensorsWriter(folder / "b", {{.name = "x", .dtype = "F31"}}, {}); }),
              HasSubstr("dtype F31"));
}

TEST(Safetensors, AFullDiskIsAnErrorThatNamesTheFile) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_EQ(refusal([] { write_small("/dev/full", 0); }),
            "/dev/full: cannot be written: No space left on device");
}

struct Case {
  std::string header, data, message;
};

// Each case has file, byte and reason. The header begins at byte 8.
TEST(Safetensors, WhatTheFormatDoesNotAllowIsRefused) {
  const Folder folder;
  const std::string path = folder / "a";
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return fmt::format(R"({{"x":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
  };
  const auto f32 = [&](const std::string& shape, const std::string& offsets) {
    return tensor("\"F32\"", shape, offsets);
  };
  const Case cases[] = {
      {"", "", "offset 8: the header does not begin with {"},
      {" {}", "", "offset 8: the header does not begin with {"},
      {"[]", "", "offset 8: the header does not begin with {"},
      {"{\"x\":", "", "offset 13: invalid JSON from here on"},
      {"{} {}", "", "invalid JSON from here on"},
      {"{\"\xff\":{}}", "", "invalid JSON from here on"},
      {"{\"x\":1}", "", "a number is not expected here"},
      {"{\"x\":null}", "", "null is not expected here"},
      {"{\"x\":true}", "", "a boolean is not expected here"},
      {"{\"x\":\"y\"}", "", "a text is not expected here"},
      {"{\"x\":[]}", "", "a list is not expected here"},
      {"{\"x\":{}}", "", "tensor \"x\" lacks one of dtype, shape and data_offsets"},
      {"{\"a\\u001b[31m\\n\":{}}", "", "tensor \"a\\u001B[31m\\u000A\" lacks one of dtype"},
      {"{\"" + std::string(1000, 'x') + "\":{}}", "",
       "tensor \"" + std::string(60, 'x') + "\"... lacks one of dtype"},
      {"{\"\":{}}", "", "a name is empty"},
      {"{\"x\":{\"dtype\":{}}}", "", "an object is not expected here"},
      {"{\"x\":{\"shape\":[[1]]}}", "", "a list is not expected here"},
      {"{\"x\":{\"pickle\":1}}", "", "tensor \"x\" has an unknown field \"pickle\""},
      {"{\"x\":{\"shape\":[],\"shape\":[]}}", "", "\"shape\" is there twice in \"x\""},
      {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", "", "\"a\" is there twice in \"__metadata__\""},
      {"{\"__metadata__\":{\"a\":1}}", "", "a number is not expected here"},
      {"{\"__metadata__\":{\"a\":[]}}", "", "a list is not expected here"},
      {f32("[1]", "[0,4]").substr(0, f32("[1]", "[0,4]").size() - 1) + "," + f32("[1]", "[0,4]").substr(1),
       "1234", "\"x\" is there twice"},
      {tensor("\"F33\"", "[1]", "[0,4]"), "1234", "unknown dtype \"F33\""},
      {tensor("1", "[1]", "[0,4]"), "1234", "a number is not expected here"},
      {f32("[-1]", "[0,4]"), "1234", "-1 is negative"},
      {f32("[1.5]", "[0,4]"), "1234", "1.5 is not a whole number"},
      {f32("[1e0]", "[0,4]"), "1234", "1e0 is not a whole number"},
      {f32("[99999999999999999999]", "[0,4]"), "1234", "is not a whole number that fits 64 bits"},
      {f32("[9223372036854775808]", "[0,4]"), "1234", "9223372036854775808 is too large"},
      {f32("[\"1\"]", "[0,4]"), "1234", "a text is not expected here"},
      {f32("[1]", "[0]"), "1234", "data_offsets of \"x\" are 1 numbers, not 2"},
      {f32("[1]", "[0,4,8]"), "1234", "data_offsets of \"x\" are 3 numbers, not 2"},
      {f32("[1]", "\"04\""), "1234", "a text is not expected here"},
      // 2^62 * 4 bytes wraps to 0, 2^61 + 1 elements of 8 bytes to 8.
      {f32("[4611686018427387904]", "[0,0]"), "", "its size does not fit 64 bits"},
      {f32("[4294967296,4294967296]", "[0,0]"), "", "its size does not fit 64 bits"},
      {tensor("\"F64\"", "[2305843009213693953]", "[0,8]"), "12345678", "its size does not fit 64 bits"},
      {f32("[2]", "[0,4]"), "1234", "its shape needs 8 bytes, its offsets say 4"},
      {f32("[1]", "[4,8]"), "12345678", "its offsets are 4 to 8, but the bytes before it end at 0"},
      {f32("[1]", "[4,0]"), "1234", "its offsets are 4 to 0"},
      {f32("[1]", "[0,4]"), "12345", "the header lists 4 bytes of tensors, the file has 5"},
      {f32("[1]", "[0,4]"), "123", "the header lists 4 bytes of tensors, the file has 3"},
      {"{}", "1", "offset 10: the header lists 0 bytes of tensors, the file has 1"},
      {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       "123", "tensor \"y\": its offsets are 1 to 3, but the bytes before it end at 2"},
  };
  for (const Case& c : cases) {
    spill(path, raw(c.header, c.data));
    const std::string said = refusal([&] { SafetensorsReader file(path); });
    EXPECT_THAT(said, testing::StartsWith(path + ": offset ")) << c.header;
    EXPECT_THAT(said, HasSubstr(c.message)) << c.header;
  }
}

TEST(Safetensors, DeepNestingAndLongHeadersCostNothing) {
  const Folder folder;
  spill(folder / "deep", raw("{" + std::string(1'000'000, '['), ""));
  EXPECT_THAT(refusal([&] { SafetensorsReader file(folder / "deep"); }), HasSubstr("invalid JSON"));
  spill(folder / "deep", raw("{\"x\":" + std::string(1'000'000, '['), ""));
  EXPECT_THAT(refusal([&] { SafetensorsReader file(folder / "deep"); }), HasSubstr("a list is not expected"));
  // A file of 20 bytes claims 2^60 bytes of header.
  std::string lie = raw("{}", "0123456789");
  lie[7] = 0x10;
  spill(folder / "lie", lie);
  EXPECT_THAT(refusal([&] { SafetensorsReader file(folder / "lie"); }),
              HasSubstr("offset 0: the header's length is 1152921504606846978; allowed are 12 at most"));
  // 16 MB and one byte, all present.
  spill(folder / "long", raw("{" + std::string(16 << 20, ' '), ""));
  EXPECT_THAT(refusal([&] { SafetensorsReader file(folder / "long"); }),
              HasSubstr("allowed are 16777216 at most"));
}

TEST(Safetensors, OnlyRegularFilesAreRead) {
  const Folder folder;
  write_small(folder / "a", 1);
  std::filesystem::create_symlink("a", folder / "link");
  EXPECT_EQ(refusal([&] { SafetensorsReader file(folder / "link"); }),
            (folder / "link") + ": is a symbolic link, not a file");
  EXPECT_EQ(refusal([&] { SafetensorsReader file(folder.path); }), folder.path + ": is not a regular file");
  EXPECT_EQ(refusal([&] { SafetensorsReader file(folder / "b"); }),
            (folder / "b") + ": cannot be opened: No such file or directory");
}

}  // namespace
}  // namespace starling
