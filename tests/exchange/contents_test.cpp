// The contents of a wire block: several vectors and a tail go over edges and through groups like
// one block.
#include "starling/exchange/contents.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "starling/exchange/exchange.h"
#include "starling/topology/schedules.h"
#include "starling/transport/local/local.h"
#include "tests/threads.h"

namespace starling {
namespace {

TEST(Contents, TheTailGoesWholeInEveryRound) {
  const Layout layout({.one_in = 4, .vectors = 2, .tail = 3}, {4 * Mask::kRun, 1}, 2);
  EXPECT_EQ(layout.cycle(), 8U);
  bool sent = false, left_out = false;
  for (std::uint64_t round = 1; round <= layout.cycle(); ++round) {
    EXPECT_EQ(layout.values({round, 0}), 2 * Mask::kRun + 3);
    EXPECT_EQ(layout.bytes({round, 0}), (2 * Mask::kRun + 3) * sizeof(float));
    (layout.values({round, 1}) == 2 + 3 ? sent : left_out) = true;
  }
  EXPECT_TRUE(sent);
  EXPECT_TRUE(left_out);
}

TEST(Contents, ABlockOfAnotherSizeWireOrMaskDoesNotFit) {
  const Layout one({.one_in = 4}, {4 * Mask::kRun}, 1), more({.one_in = 4, .tail = 1}, {4 * Mask::kRun}, 1);
  const SwapId id{1, 0};
  Frame frame = one.frame(FrameType::data, id, Wire::fp32);
  frame.total = one.bytes(id);
  EXPECT_TRUE(one.fits(frame, one.bytes(id), Wire::fp32));
  EXPECT_FALSE(one.fits(frame, one.bytes(id), Wire::bf16));
  EXPECT_FALSE(more.fits(frame, more.bytes(id), Wire::fp32));
  frame.round = 2;  // its mask is another one
  EXPECT_FALSE(one.fits(frame, one.bytes(id), Wire::fp32));
}

TEST(Contents, AnEmptyBlockFitsOnlyWhereItMayBeEmpty) {
  const std::size_t size = 4 * Mask::kRun;
  const Layout mask({.one_in = 4}, {size}, 1), whole({.chooser = Chooser::sender}, {size}, 1),
      sender({.one_in = 4, .chooser = Chooser::sender, .may_be_empty = true}, {size}, 1);
  const SwapId id{1, 0};
  for (const Layout* const layout : {&mask, &whole, &sender}) {
    Frame frame = layout->frame(FrameType::data, id, Wire::fp32);
    EXPECT_EQ(layout->fits(frame, layout->bytes(id), Wire::fp32), layout == &sender);
    frame.total = 8;  // one value of many
    EXPECT_FALSE(layout->fits(frame, layout->bytes(id), Wire::fp32));
  }
  const Buffer eight(8);
  EXPECT_TRUE(sender.may_be_read(id, SentBlock({}, Wire::fp32)));
  EXPECT_FALSE(whole.may_be_read(id, SentBlock({}, Wire::fp32)));
  EXPECT_FALSE(sender.may_be_read(id, SentBlock({nullptr, eight}, Wire::fp32)));
}

// Two vectors and a tail of one value. Each worker sends its rank, 10 + its rank and 20 + its rank.
void expect_vectors_and_tail(const char* topology, Exchanged exchanged) {
  constexpr std::size_t kSize = 30'000;  // more than one chunk
  constexpr int kWorkers = 4;
  const bool pushes = exchanged == Exchanged::pushes;
  const Schedule schedule = make_schedule(topology, kWorkers);
  LocalHub hub(kWorkers);
  const auto work = [&](int rank) {
    Exchange exchange(hub.endpoint(rank), schedule, {kSize},
                      {.contents = {.exchanged = exchanged, .vectors = 2, .tail = 1}});
    exchange.meet();
    auto* const to = static_cast<float*>(exchange.outgoing(0).values);
    std::fill_n(to, kSize, static_cast<float>(rank));
    std::fill_n(to + kSize, kSize, static_cast<float>(10 + rank));
    to[2 * kSize] = static_cast<float>(20 + rank);
    exchange.start(0, true);
    double mixed[3] = {1.0 * rank, 10.0 + rank, 20.0 + rank};
    for (const Arrival& arrival : exchange.finish(0)) {
      std::vector<float> theirs(2 * kSize + 1);
      ASSERT_EQ(arrival.theirs.bytes().size(), theirs.size() * sizeof(float));
      std::memcpy(theirs.data(), arrival.theirs.bytes().data(), theirs.size() * sizeof(float));
      for (std::size_t k = 0; k < kSize; ++k) {
        ASSERT_EQ(theirs[k], theirs[0]) << k;
        ASSERT_EQ(theirs[kSize + k], theirs[kSize]) << k;
      }
      for (int part = 0; part < 3; ++part)
        mixed[part] +=
            arrival.weight * (theirs[static_cast<std::size_t>(part) * kSize] - (10.0 * part + rank));
      EXPECT_EQ(arrival.given, pushes ? arrival.weight : 0);  // the edges are symmetric
      if (pushes) {
        EXPECT_EQ(arrival.mine.bytes().size(), theirs.size() * sizeof(float));
      }
    }
    double expected = rank;
    for (const Neighbour& j : schedule.at(0).neighbours[static_cast<std::size_t>(rank)])
      expected += j.weight * (j.rank - rank);
    for (int part = 0; part < 3; ++part) EXPECT_NEAR(mixed[part], 10.0 * part + expected, 1e-5) << topology;
    EXPECT_EQ(exchange.statistics().aborted, 0U);
  };
  on_threads(kWorkers, work);
}

TEST(Contents, VectorsAndTailArriveBehindOneAnother) {
  for (const char* topology : {"ring", "complete"}) {  // by edges, and in a group
    for (const Exchanged exchanged : {Exchanged::averages, Exchanged::pushes})
      expect_vectors_and_tail(topology, exchanged);
  }
}

}  // namespace
}  // namespace starling
