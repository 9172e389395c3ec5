#include "starling/transport/tcp/seal.h"

#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "recorder.h"

namespace starling::tcp {
namespace {

const Conversation kSaid{.hello = {std::byte{1}}, .challenge = {std::byte{2}}};

Digest key() { return frame_key("a token", Role::dialer, kSaid); }

// A frame as it crosses the line.
struct Crossing {
  Bytes head, payload, tail;
};

Crossing crossing(Seal& out, std::uint64_t round, std::size_t length) {
  const auto payload = *random_block(length, static_cast<unsigned>(round));
  const Frame frame{
      .type = FrameType::data, .round = round, .total = length, .length = static_cast<std::uint32_t>(length)};
  const Seal::Closed closed = out.close(frame, payload);
  return {{closed.head.begin(), closed.head.begin() + static_cast<std::ptrdiff_t>(out.head_bytes())},
          payload,
          {closed.tail.begin(), closed.tail.begin() + static_cast<std::ptrdiff_t>(out.tag_bytes())}};
}

bool arrives(Seal& in, const Crossing& it) {
  const auto frame = in.open(it.head);
  return frame && in.is_intact(*frame, it.payload, it.tail);
}

TEST(Seal, FramesComeAsTheyWereSent) {
  for (const bool sealed : {false, true}) {
    Seal out = sealed ? Seal(key()) : Seal(), in = sealed ? Seal(key()) : Seal();
    EXPECT_EQ(out.head_bytes(), sealed ? 80U : 64U);
    for (std::uint64_t round = 0; round < 20; ++round) {
      const Crossing it = crossing(out, round, round % 3 * 1000);
      const auto frame = in.open(it.head);
      ASSERT_TRUE(frame);
      EXPECT_EQ(frame->round, round);
      EXPECT_TRUE(in.is_intact(*frame, it.payload, it.tail));
      EXPECT_FALSE(in.is_forged());
    }
  }
}

// GMAC as OpenSSL's command computes it:
//   openssl mac -cipher AES-256-GCM -macopt hexkey:$(printf '%064d' 0)
//     -macopt hexiv:$(printf '%024d' 0) -in HEADER GMAC
TEST(Seal, TheTagIsThatOfTheStandard) {
  Seal out{Digest{}};
  const Seal::Closed closed = out.close({.type = FrameType::ack}, {});
  std::string tag;
  for (const std::byte byte : std::span(closed.head).last(Seal::kTag))
    tag += fmt::format("{:02x}", static_cast<unsigned>(byte));
  EXPECT_EQ(tag, "44b198c9767b3cd1d865df0e874c24da");
}

TEST(Seal, EachChangedBitIsNoticed) {
  for (const auto part : {&Crossing::head, &Crossing::payload, &Crossing::tail}) {
    Seal first(key());
    const std::size_t bits = 8 * (crossing(first, 1, 100).*part).size();
    for (std::size_t bit = 0; bit < bits; ++bit) {
      Seal out(key()), in(key());
      Crossing it = crossing(out, 1, 100);
      (it.*part)[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
      EXPECT_FALSE(arrives(in, it)) << bit;
      EXPECT_TRUE(in.is_forged());
    }
  }
}

TEST(Seal, AFrameFitsAtItsPlaceOnly) {
  for (const std::size_t length : {0, 100}) {
    Seal out(key());
    std::vector<Crossing> sent;
    for (std::uint64_t round = 0; round < 4; ++round) sent.push_back(crossing(out, round, length));
    // The frames that come, and the number of those that are taken.
    const auto taken = [&](const std::vector<std::size_t>& order) {
      Seal in(key());
      for (std::size_t i = 0; i < order.size(); ++i) {
        if (!arrives(in, sent[order[i]])) return i;
      }
      return order.size();
    };
    EXPECT_EQ(taken({0, 1, 2, 3}), 4U);
    EXPECT_EQ(taken({0, 2, 3}), 1U);
    EXPECT_EQ(taken({0, 1, 1, 2}), 2U);
    EXPECT_EQ(taken({0, 2, 1, 3}), 1U);
    EXPECT_EQ(taken({1, 2, 3}), 0U);
  }
}

TEST(Seal, EachDirectionAndEachConversationHasItsOwnKey) {
  std::vector<Conversation> all(4, kSaid);
  all[1].hello[87] ^= std::byte{1};
  all[2].challenge[43] ^= std::byte{1};
  all[3].sealed = false;
  std::vector<Digest> keys{prove("a token", Role::dialer, kSaid), prove("a token", Role::acceptor, kSaid),
                           frame_key("another token", Role::dialer, kSaid)};
  for (const Conversation& said : all) {
    for (const Role role : {Role::dialer, Role::acceptor}) keys.push_back(frame_key("a token", role, said));
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(keys[i], keys[j]) << i << " and " << j;
  }
}

}  // namespace
}  // namespace starling::tcp
