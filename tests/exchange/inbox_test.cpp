// The receiver of chunks: their order, damage, early payloads, and the lifetime of memory.
#include "starling/exchange/inbox.h"

#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

namespace starling {
namespace {

constexpr SwapId kId{3, 1};

Frame chunk_of(std::uint64_t total, std::uint64_t offset, std::uint32_t length) {
  return {.type = FrameType::data,
          .round = kId.round,
          .block = kId.block,
          .total = total,
          .offset = offset,
          .length = length};
}

struct Receiver {
  explicit Receiver(std::size_t most = Inbox::kUnbounded, std::optional<Wire> values = Wire::fp32)
      : inbox(most, values) {}
  std::span<std::byte> place(const Frame& frame, SwapId id = kId) {
    return inbox.place(id, frame, [&] {
      memory = std::make_shared<std::vector<std::byte>>(frame.total);
      last = memory;
      return Inbox::Room{std::exchange(memory, nullptr), *last.lock()};
    });
  }
  // The chunk comes, and holds these values.
  Inbox::Chunk come(const Frame& frame, std::vector<float> values, bool sound = true) {
    const auto to = place(frame);
    if (to.size() != frame.length) return Inbox::Chunk::damaged;
    std::memcpy(to.data(), values.data(), to.size());
    return inbox.received(kId, frame, to, sound);
  }
  Inbox inbox;
  std::shared_ptr<std::vector<std::byte>> memory;
  std::weak_ptr<std::vector<std::byte>> last;
};

TEST(Inbox, ChunksInOrderMakeThePayload) {
  Receiver to;
  EXPECT_EQ(to.come(chunk_of(12, 0, 8), {1, 2}), Inbox::Chunk::partial);
  EXPECT_TRUE(to.place(chunk_of(12, 0, 8)).empty());   // again
  EXPECT_TRUE(to.place(chunk_of(16, 8, 8)).empty());   // beyond the end
  EXPECT_TRUE(to.place(chunk_of(16, 12, 4)).empty());  // not the next one
  EXPECT_EQ(to.come(chunk_of(12, 8, 4), {3}), Inbox::Chunk::last);
  EXPECT_EQ(to.inbox.read(kId, Wire::fp32).bytes().size(), 12U);
  const SentBlock block = to.inbox.take(kId).block;
  float values[3];
  std::memcpy(values, block.bytes().data(), sizeof values);
  EXPECT_EQ(values[0] + 10 * values[1] + 100 * values[2], 321);
  EXPECT_FALSE(to.inbox.contains(kId));
  EXPECT_TRUE(to.inbox.take(kId).block.bytes().empty());
}

TEST(Inbox, NothingOfADamagedPayloadIsKept) {
  for (const bool sound : {false, true}) {  // a checksum, and a value that is not finite
    Receiver to;
    to.come(chunk_of(8, 0, 4), {1});
    EXPECT_EQ(to.come(chunk_of(8, 4, 4), {std::numeric_limits<float>::infinity()}, sound),
              Inbox::Chunk::damaged);
    EXPECT_FALSE(to.inbox.contains(kId));
    EXPECT_TRUE(to.last.expired());
  }
  Receiver any(Inbox::kUnbounded, std::nullopt);
  EXPECT_EQ(any.come(chunk_of(4, 0, 4), {std::numeric_limits<float>::infinity()}), Inbox::Chunk::last);
}

TEST(Inbox, MemoryStaysWhileTheTransportWritesToIt) {
  Receiver to;
  const Frame frame = chunk_of(8, 0, 4);
  const auto bytes = to.place(frame);
  to.inbox.drop(kId);
  to.inbox.clear();
  EXPECT_FALSE(to.last.expired());
  EXPECT_EQ(to.inbox.received(kId, frame, bytes, true), Inbox::Chunk::partial);
  EXPECT_TRUE(to.last.expired());
}

TEST(Inbox, BeginsABoundedNumberOfPayloads) {
  Receiver to(2);
  to.place(chunk_of(8, 0, 4), {1, 0});
  to.place(chunk_of(8, 0, 4), {2, 0});
  EXPECT_TRUE(to.inbox.may_take({1, 0}));
  EXPECT_FALSE(to.inbox.may_take({3, 0}));
  to.inbox.drop_before(2);
  EXPECT_TRUE(to.inbox.may_take({3, 0}));
  EXPECT_FALSE(to.inbox.contains({1, 0}));
}

TEST(Inbox, WhatLiesWithTheSenderAndWhatHasNoBytesIsWholeAtOnce) {
  Receiver to;
  const auto memory = std::make_shared<Buffer>(8);
  to.inbox.put(kId, SentBlock(payload_of(memory), Wire::fp32));
  EXPECT_TRUE(to.place(chunk_of(8, 0, 4)).empty());
  EXPECT_EQ(to.inbox.take(kId).block.bytes().data(), memory->data());
  EXPECT_EQ(to.inbox.received(kId, chunk_of(0, 0, 0), {}, true), Inbox::Chunk::last);
  EXPECT_TRUE(to.inbox.read(kId, Wire::fp32).bytes().empty());
}

struct Silent final : EdgeActions {
  void send_block(SwapId) override {}
  void cancel_block(SwapId) override {}
  void send(FrameType, SwapId, bool) override {}
  void decided(SwapId, Outcome) override {}
  void mended(SwapId, bool) override {}
};

// Its edge is up. Blocks are one value, in one chunk.
struct EdgeReceiver {
  EdgeReceiver() { edge.connected(); }
  std::string_view come(float value, bool sound, std::string_view flaw) {
    const Frame frame = chunk_of(sizeof value, 0, sizeof value);
    const auto to = inbox.may_take(kId) ? inbox.place(kId, frame, pool) : std::span<std::byte>();
    if (!to.empty()) std::memcpy(to.data(), &value, sizeof value);
    return inbox.received(kId, frame, to, sound, [&](const SentBlock&) { return flaw; });
  }
  Silent actions;
  Edge edge{actions};
  EdgeInbox inbox{edge, 2, Wire::fp32};
  BufferPool pool;
};

TEST(EdgeInbox, KeepsAWholeBlockUntilItsSwapIsDecided) {
  EdgeReceiver to;
  EXPECT_EQ(to.come(1, true, ""), "");
  EXPECT_TRUE(to.inbox.contains(kId));
  EXPECT_FALSE(to.inbox.may_take(kId));
  EXPECT_EQ(to.come(2, true, ""), "");  // a second one is ignored, and the first stays
  const SentBlock block = to.inbox.take(kId);
  ASSERT_EQ(block.bytes().size(), sizeof(float));
  float value;
  std::memcpy(&value, block.bytes().data(), sizeof value);
  EXPECT_EQ(value, 1);
}

TEST(EdgeInbox, DropsABlockWithAFlawAndNamesIt) {
  for (const bool sound : {false, true}) {
    EdgeReceiver to;
    EXPECT_EQ(to.come(0, sound, "of a kind"), sound ? "of a kind" : EdgeInbox::kDamaged);
    EXPECT_FALSE(to.inbox.contains(kId));
    EXPECT_FALSE(to.edge.has(kId));
  }
}

}  // namespace
}  // namespace starling
