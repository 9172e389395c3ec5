#include "starling/transport/frame.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

namespace starling {
namespace {

// A header whose own checksum is right, whatever else is wrong in it.
std::array<std::byte, Frame::kBytes> sealed(std::array<std::byte, Frame::kBytes> bytes) {
  const std::uint32_t crc = crc32c(std::span(bytes).first(60));
  for (std::size_t i = 0; i < 4; ++i) bytes[60 + i] = static_cast<std::byte>(crc >> (8 * i));
  return bytes;
}

Frame example() {
  return {.type = FrameType::data,
          .dtype = 3,
          .round = 0x1112131415161718,
          .block = 0x21222324,
          .step = 0x31323334,
          .value = 0x4142434445464748,
          .total = 10'000'000'000,
          .offset = 9'999'000'000,
          .length = 256 * 1024,
          .payload_crc = 0x51525354};
}

TEST(Frame, ComesBackAsItWas) {
  const Frame sent = example();
  const auto got = Frame::decode(sent.encode());
  ASSERT_TRUE(got);
  EXPECT_EQ(got->type, sent.type);
  EXPECT_EQ(got->dtype, sent.dtype);
  EXPECT_EQ(got->round, sent.round);
  EXPECT_EQ(got->block, sent.block);
  EXPECT_EQ(got->step, sent.step);
  EXPECT_EQ(got->value, sent.value);
  EXPECT_EQ(got->total, sent.total);
  EXPECT_EQ(got->offset, sent.offset);
  EXPECT_EQ(got->length, sent.length);
  EXPECT_EQ(got->payload_crc, sent.payload_crc);
}

TEST(Frame, StartsWithItsMagicInLittleEndian) {
  const auto bytes = Frame{.type = FrameType::ack}.encode();
  EXPECT_EQ(std::memcmp(bytes.data(), "STRL", 4), 0);
}

TEST(Frame, EveryTypeIsDecodedAndNoOther) {
  for (int type = 0; type < 256; ++type) {
    const bool known = (type >= 1 && type <= 13) || (type >= 16 && type <= 20) ||
                       (type >= 24 && type <= 31) || (type >= 32 && type <= 35) || type == 40 || type == 41 ||
                       type == 48 || type == 49;
    EXPECT_EQ(Frame::decode(Frame{.type = static_cast<FrameType>(type)}.encode()).has_value(), known) << type;
  }
}

TEST(Frame, EverySingleBitFlipIsRefused) {
  const auto good = example().encode();
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    auto bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(Frame::decode(bad)) << "bit " << bit;
  }
}

TEST(Frame, WhatCannotBeIsRefusedEvenWithARightChecksum) {
  const auto accepted = [](std::uint64_t total, std::uint64_t offset, std::uint32_t length) {
    Frame frame = example();
    frame.total = total;
    frame.offset = offset;
    frame.length = length;
    return Frame::decode(frame.encode()).has_value();
  };
  constexpr std::uint64_t kMax = ~std::uint64_t{0};
  EXPECT_TRUE(accepted(0, 0, 0));
  EXPECT_TRUE(accepted(100, 100, 0));
  EXPECT_TRUE(accepted(1 << 20, 0, Frame::kMaxPayload));
  EXPECT_FALSE(accepted(1 << 20, 0, Frame::kMaxPayload + 1));
  EXPECT_FALSE(accepted(kMax, 0, ~std::uint32_t{0}));
  EXPECT_FALSE(accepted(100, 0, 101));
  EXPECT_FALSE(accepted(100, 60, 41));
  EXPECT_FALSE(accepted(100, 101, 0));
  EXPECT_FALSE(accepted(100, kMax, 2)) << "offset + length wraps around";

  for (const std::size_t reserved : {6u, 7u}) {
    auto bytes = example().encode();
    ASSERT_TRUE(Frame::decode(sealed(bytes)));
    bytes[reserved] = std::byte{1};
    EXPECT_FALSE(Frame::decode(sealed(bytes))) << "byte " << reserved;
  }
}

TEST(Frame, RandomBytesAreRefused) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 200'000; ++i) {
    std::array<std::byte, Frame::kBytes> bytes;
    for (std::size_t at = 0; at < bytes.size(); at += 8) {
      const std::uint64_t value = random();
      std::memcpy(bytes.data() + at, &value, 8);
    }
    if (i % 2 == 1) std::memcpy(bytes.data(), "STRL", 4);
    ASSERT_FALSE(Frame::decode(bytes)) << "seed 3, case " << i;
  }
}

TEST(Frame, RandomFieldsWithARightChecksumAreDecodedOnlyIfTheyAgree) {
  std::mt19937_64 random(4);
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    auto bytes = example().encode();
    for (int changes = 1 + static_cast<int>(random() % 3); changes > 0; --changes) {
      bytes[4 + random() % 56] = static_cast<std::byte>(random());
    }
    if (const auto frame = Frame::decode(sealed(bytes))) {
      ++accepted;
      ASSERT_LE(frame->length, Frame::kMaxPayload);
      ASSERT_LE(frame->offset, frame->total);
      ASSERT_LE(frame->length, frame->total - frame->offset);
      ASSERT_EQ(frame->encode(), sealed(bytes)) << "seed 4, case " << i;
    }
  }
  EXPECT_GT(accepted, 1000);
}

}  // namespace
}  // namespace starling
