#include "starling/checkpoint/manifest.h"

#include <gmock/gmock.h>

#include "starling/core/crc32c.h"
#include "tests/checkpoint/folder.h"

namespace starling {
namespace {

using testing::HasSubstr;

Manifest example() {
  return {.step = 15,
          .workers = 4,
          .seconds = 12.625,
          .files = {{0, {100, 0x8a9136aa}, 12}, {1, {100, 7}, 18}, {3, {100, 0}, 17}},
          .recipe = {{"optimizer.lr", "0.01"}, {"run.out", "a \"name\""}}};
}

// The example with one piece of text replaced, and a valid checksum again.
std::string forged(const std::string& from, const std::string& to) {
  std::string text = to_json(example());
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::size_t tail = text.rfind(",\n  \"crc32c\"");
  const std::string body = text.substr(0, tail) + "\n}";
  std::string crc(8, '0');
  std::snprintf(crc.data(), 9, "%08x", crc32c(std::as_bytes(std::span(body))));
  return text.substr(0, tail) + ",\n  \"crc32c\": \"" + crc + "\"\n}\n";
}

std::string said(const std::string& text) {
  return refusal([&] { parse_manifest(text, "m"); });
}

TEST(Manifest, WhatIsWrittenIsRead) {
  const Manifest manifest = parse_manifest(to_json(example()), "m");
  EXPECT_EQ(to_json(manifest), to_json(example()));
  EXPECT_EQ(manifest.files[2].name(), "worker-3.safetensors");
  EXPECT_EQ(manifest.files[0].digest, (Digest{100, 0x8a9136aa}));
  EXPECT_EQ(manifest.files[2].step, 17);
  EXPECT_EQ(manifest.recipe, example().recipe);
  EXPECT_EQ(said(forged("15", "15")), "accepted");  // otherwise the cases below would prove nothing
}

TEST(Manifest, EarlierWorkersAreKnown) {
  Manifest manifest = example();
  EXPECT_EQ(to_json(manifest).find("before"), std::string::npos);
  manifest.before = {{5, {4, 6}}, {12, {12, 12, 12}}};
  const std::string text = to_json(manifest);
  const Manifest read = parse_manifest(text, "m");
  ASSERT_EQ(read.before.size(), 2U);
  EXPECT_EQ(read.before[0].steps, (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(read.before[1].step, 12);
  const auto others = before_others(manifest);  // worker 2 has no file
  ASSERT_EQ(others.size(), 3U);
  EXPECT_EQ(others[2].step, 15);
  EXPECT_EQ(others[2].steps, (std::vector<std::int64_t>{12, 18, 15, 17}));

  const auto refused = [&](std::vector<EarlierWorkers> before) {
    manifest.before = std::move(before);
    return said(to_json(manifest));
  };
  EXPECT_THAT(refused({{5, {}}}), HasSubstr("steps: allowed are 1 to "));
  EXPECT_THAT(refused({{5, {5, -1}}}), HasSubstr("steps: allowed are whole numbers from 0"));
  EXPECT_THAT(refused({{5, {5}}, {7, {4}}}), HasSubstr("steps: allowed are whole numbers from 5"));
  EXPECT_THAT(refused({{5, {5}}, {4, {5}}}), HasSubstr("step is 4: allowed are 5 to 15"));
  EXPECT_THAT(refused({{16, {5}}}), HasSubstr("step is 16: allowed are 0 to 15"));
  EXPECT_THAT(refused({{13, {13}}}), HasSubstr("step is 12: allowed are 13 to "));  // of a file
}

TEST(Manifest, FileNamesThatLeadElsewhereAreRefused) {
  for (const std::string name : {"../worker-1.safetensors", "/etc/passwd", "worker-2.safetensors", "", "a/b",
                                 "worker-1.safetensors/../x", "worker-01.safetensors"}) {
    const std::string text = forged("worker-1.safetensors", name);
    EXPECT_EQ(said(text), "m: offset " + std::to_string(text.find("\"" + name + "\"")) + ": file \"" + name +
                              "\" of worker 1: allowed is worker-1.safetensors, in the same folder");
  }
}

TEST(Manifest, ForeignTextsAndVersionsAreRefused) {
  EXPECT_EQ(said(""), "m: offset 1: invalid JSON from here on");
  EXPECT_THAT(said("{"), HasSubstr("offset 2: invalid JSON from here on"));
  EXPECT_EQ(said("[]"),
            "m: offset 0: this is not the manifest of a checkpoint: no \"format\": \"starling checkpoint\"");
  EXPECT_THAT(said("{\"format\": 1}"), HasSubstr("no \"format\""));
  EXPECT_THAT(said(std::string(100'000, '[')), HasSubstr("nested deeper than 4 levels"));
  EXPECT_EQ(said(forged("\"version\": 1", "\"version\": 2")),
            "m: offset 39: format version 2; this Starling reads version 1");
  EXPECT_THAT(said(forged("\"step\": 15", "\"stop\": 15")), HasSubstr("key 'step' not found"));
  EXPECT_THAT(said(forged("\"step\": 15", "\"step\": \"15\"")), HasSubstr("type must be number"));
}

TEST(Manifest, NumbersThatCannotBeAreRefused) {
  EXPECT_THAT(said(forged("\"step\": 15", "\"step\": -1")), HasSubstr("step is -1: allowed are 0 to "));
  EXPECT_THAT(said(forged("\"step\": 18", "\"step\": -18")), HasSubstr("step is -18: allowed are 0 to "));
  EXPECT_THAT(said(forged("\"workers\": 4", "\"workers\": 0")), HasSubstr("workers is 0: allowed are 1 to"));
  EXPECT_THAT(said(forged("\"workers\": 4", "\"workers\": 3")), HasSubstr("worker is 3: allowed are 2 to 2"));
  EXPECT_THAT(said(forged("\"worker\": 1", "\"worker\": 0")), HasSubstr("worker is 0: allowed are 1 to 3"));
  EXPECT_THAT(said(forged("\"bytes\": 100", "\"bytes\": 1e300")), HasSubstr("bytes is not a whole number"));
  EXPECT_THAT(said(forged("\"seconds\": 12.625", "\"seconds\": -12.625")),
              HasSubstr("seconds: allowed is a number from 0"));
  EXPECT_THAT(said(forged("\"crc32c\": \"8a9136aa\"", "\"crc32c\": \"words\"")),
              HasSubstr("not a hexadecimal number"));
  EXPECT_THAT(said(to_json({.step = 15, .workers = 4})), HasSubstr("there is no worker's file"));
  // A number that JSON's library would convert to another one differs from the written form.
  for (const std::string number : {"15.5", "15.0", "1e1", "18446744073709551616", "015"}) {
    EXPECT_NE(said(forged("\"step\": 15", "\"step\": " + number)), "accepted") << number;
  }
  EXPECT_NE(said(forged("\"worker\": 1", "\"worker\": 4294967297")), "accepted");
  EXPECT_NE(said(forged("\"crc32c\": \"00000007\"", "\"crc32c\": \"7\"")), "accepted");
}

TEST(Manifest, TwofoldKeysAndDamageAreRefused) {
  EXPECT_THAT(said(forged("\"step\": 15", "\"step\": 15,\n  \"step\": 16")), HasSubstr("damaged or edited"));
  EXPECT_THAT(said(forged("\"step\": 15", "\"more\": 1,\n  \"step\": 15")), HasSubstr("damaged or edited"));
  std::string text = to_json(example());
  const std::size_t at = text.find("15");
  text[at] = '2';
  EXPECT_THAT(said(text), HasSubstr("damaged or edited: it differs from its checksum from here on"));
  EXPECT_THAT(said(to_json(example()) + " "), HasSubstr("damaged or edited"));
}

}  // namespace
}  // namespace starling
