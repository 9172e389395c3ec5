// The contract of transport.h, for every transport: what is sent arrives, in which order, and from
// which threads. contract_ends_test.cpp has the ends of edges and workers.
#include "contract.h"

#include <future>

#include "starling/core/error.h"
#include "tests/eventually.h"
#include "tests/threads.h"

namespace starling {
namespace {

using Kind = Recorder::Kind;

TEST_P(Contract, KnowsItsRankAndSize) {
  begin(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(transports[rank]->rank(), rank);
    EXPECT_EQ(transports[rank]->size(), 3);
  }
}

TEST_P(Contract, AWorldOfOneIsAWorld) {
  connect(1);
  bool ran = false;
  on_thread_of(0, [&] { ran = true; });
  EXPECT_TRUE(ran);
  EXPECT_EQ(transports[0]->bytes_sent(), 0u);
}

TEST_P(Contract, AllPairsConnectOnceAndTalk) {
  connect(5);
  for (const auto& [a, b] : ordered_pairs(5))
    transports[a]->send(b, {.type = FrameType::ack, .round = static_cast<std::uint64_t>(10 * a + b)});
  for (const auto& [a, b] : ordered_pairs(5)) {
    EXPECT_TRUE(recorders[b]->wait_for_frame(a, FrameType::ack, static_cast<std::uint64_t>(10 * a + b)));
    EXPECT_EQ(recorders[b]->times(Kind::connected, a), 1);
    EXPECT_EQ(recorders[b]->times(Kind::disconnected, a), 0);
    EXPECT_EQ(recorders[b]->times(Kind::lost, a), 0);
  }
}

TEST_P(Contract, ConnectsOnlyWhenBothWantIt) {
  begin(2);
  transports[1]->open(0);
  transports[1]->open(0);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(recorders[0]->events().empty());
  EXPECT_TRUE(recorders[1]->events().empty());
  transports[0]->open(1);
  EXPECT_TRUE(recorders[0]->wait_for(Kind::connected, 1));
  EXPECT_TRUE(recorders[1]->wait_for(Kind::connected, 0));
}

TEST_P(Contract, PayloadsOfEverySizeArriveWhole) {
  connect(2);
  const std::size_t sizes[] = {0,      1,       63,      4095,    4096,      4097,
                               65'537, 262'143, 262'144, 262'145, 1'048'577, 5'000'003};
  std::uint32_t block = 0;
  std::uint64_t expected = 0, values = 0;
  std::vector<std::shared_ptr<const Bytes>> sent;
  for (const std::size_t size : sizes) {
    sent.push_back(random_block(size, block));
    transports[1]->send(0,
                        {.type = FrameType::data,
                         .dtype = 2,
                         .round = 9,
                         .block = block++,
                         .step = 3,
                         .value = 5,
                         .total = size},
                        payload_of(sent.back()));
    const std::size_t frames = std::max<std::size_t>(1, (size + Frame::kMaxPayload - 1) / Frame::kMaxPayload);
    values += size;
    expected += size + (GetParam().in_frames ? Frame::kBytes * frames : 0);
  }
  for (std::uint32_t b = 0; b < block; ++b) {
    ASSERT_TRUE(recorders[0]->wait_for_frame(1, FrameType::data, 9, b));
    EXPECT_EQ(recorders[0]->block(1, FrameType::data, 9, b), *sent[b]) << sent[b]->size() << " bytes";
  }
  std::map<std::uint32_t, std::uint64_t> next;
  for (const auto& e : recorders[0]->received(1)) {
    EXPECT_TRUE(e.intact);
    EXPECT_EQ(e.frame.dtype, 2);
    EXPECT_EQ(e.frame.step, 3u);
    EXPECT_EQ(e.frame.value, 5u);
    EXPECT_EQ(e.frame.total, sent[e.frame.block]->size());
    EXPECT_EQ(e.frame.offset, next[e.frame.block]) << "chunks of block " << e.frame.block << " out of order";
    EXPECT_LE(e.frame.length, Frame::kMaxPayload);
    next[e.frame.block] += e.frame.length;
  }
  EXPECT_EQ(transports[1]->payload_sent(), values);  // whatever time and load add
  EXPECT_GE(transports[1]->bytes_sent(), expected);
  EXPECT_LE(transports[1]->bytes_sent(), expected + GetParam().own_frames);
}

TEST_P(Contract, APartOfABlockKeepsItsPlace) {
  connect(2);
  const auto part = random_block(600'000, 1);
  transports[0]->send(1, {.type = FrameType::data, .total = 1'000'000, .offset = 400'000}, payload_of(part));
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data));
  const Bytes block = recorders[1]->block(0, FrameType::data);
  ASSERT_EQ(block.size(), 1'000'000u);
  EXPECT_TRUE(std::equal(part->begin(), part->end(), block.begin() + 400'000));
}

TEST_P(Contract, EachKindKeepsItsOrder) {
  connect(2);
  const auto bulk = random_block(300'000, 1);
  for (std::uint64_t i = 0; i < 200; ++i) {
    transports[0]->send(1, {.type = FrameType::ack, .round = i});
    if (i % 10 == 0) transports[0]->send(1, {.type = FrameType::data, .round = i}, payload_of(bulk));
  }
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack, 199));
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data, 190));
  std::uint64_t acks = 0, data = 0;
  for (const Frame& frame : frames_from(0, recorders[1]->events())) {
    if (frame.type == FrameType::ack) {
      EXPECT_EQ(frame.round, acks++);
    } else {
      EXPECT_GE(frame.round, data);
      data = frame.round;
    }
  }
}

TEST_P(Contract, ControlOvertakesBulk) {
  connect(2);
  const auto bulk = random_block(64 << 20, 1);
  const auto names = random_block(1000, 2);
  on_thread_of(0, [&] {
    transports[0]->send(1, {.type = FrameType::data}, payload_of(bulk));
    transports[0]->send(1, {.type = FrameType::ack});
    transports[0]->send(1, {.type = FrameType::join}, payload_of(names));
  });
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data));
  const auto frames = frames_from(0, recorders[1]->events());
  ASSERT_EQ(frames.size(), 64u * 4 + 2);
  const auto place_of = [&](FrameType type) {
    return std::find_if(frames.begin(), frames.end(), [=](const Frame& f) { return f.type == type; }) -
           frames.begin();
  };
  // No bulk had begun when they were queued.
  EXPECT_EQ(place_of(FrameType::ack), 0);
  EXPECT_EQ(place_of(FrameType::join), 1);
  EXPECT_EQ(recorders[1]->block(0, FrameType::join), *names);
}

TEST_P(Contract, ControlOvertakesBulkThatIsUnderWay) {
  connect(2);
  ASSERT_TRUE(bulk_is_under_way());
  transports[0]->send(1, {.type = FrameType::ack});
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack));
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data));
  EXPECT_EQ(frames_from(0, recorders[1]->events()).back().type, FrameType::data);
}

TEST_P(Contract, CancelledBulkIsNotSent) {
  connect(2);
  auto bulk = random_block(16 << 20, 1);
  const std::weak_ptr<const Bytes> alive = bulk;
  on_thread_of(0, [&] {
    transports[0]->send(1, {.type = FrameType::data, .round = 1, .block = 2}, payload_of(std::move(bulk)));
    transports[0]->cancel(1, FrameType::data, 1, 3);
    transports[0]->cancel(1, FrameType::data, 2, 2);
    EXPECT_FALSE(alive.expired()) << "another block was cancelled";
    transports[0]->cancel(1, FrameType::data, 1, 2);
    transports[0]->send(1, {.type = FrameType::done});
  });
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::done));
  EXPECT_EQ(frames_from(0, recorders[1]->events()).size(), 1u);
  EXPECT_TRUE(alive.expired());
}

TEST_P(Contract, BulkIsCancelledUnderWayAndTheNextArrives) {
  connect(2);
  auto bulk = random_block(256 << 20, 1);
  const std::weak_ptr<const Bytes> alive = bulk;
  transports[0]->send(1, {.type = FrameType::data, .round = 1}, payload_of(std::move(bulk)));
  ASSERT_TRUE(recorders[1]->wait([](const auto& events) { return !frames_from(0, events).empty(); }));
  transports[0]->cancel(1, FrameType::data, 1, 0);
  const auto next = random_block(1'000'000, 2);
  transports[0]->send(1, {.type = FrameType::data, .round = 2}, payload_of(next));
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data, 2));
  EXPECT_EQ(recorders[1]->block(0, FrameType::data, 2), *next);
  EXPECT_TRUE(alive.expired());
  std::uint64_t arrived = 0;
  for (const auto& e : recorders[1]->received(0)) {
    EXPECT_TRUE(e.intact);
    if (e.frame.round == 1) arrived += e.frame.length;
  }
  EXPECT_LT(arrived, 256u << 20);
}

TEST_P(Contract, APayloadIsReleasedOnceItIsSent) {
  connect(2);
  auto bulk = random_block(3'000'000, 1);
  const std::weak_ptr<const Bytes> alive = bulk;
  transports[0]->send(1, {.type = FrameType::data}, payload_of(std::move(bulk)));
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data));
  EXPECT_TRUE(eventually([&] { return alive.expired(); }));
}

TEST_P(Contract, WhatCannotBeSentIsDropped) {
  begin(2);
  auto bulk = random_block(1'000'000, 1);
  const std::weak_ptr<const Bytes> alive = bulk;
  on_thread_of(0, [&] { transports[0]->send(1, {.type = FrameType::data}, payload_of(std::move(bulk))); });
  EXPECT_TRUE(alive.expired());
  connect_all();
  transports[0]->send(1, {.type = FrameType::ack});
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack));
  EXPECT_EQ(frames_from(0, recorders[1]->events()).size(), 1u);
}

TEST_P(Contract, APayloadThatIsNotWantedIsReadPast) {
  begin(2);
  recorders[1]->unwanted = [](const Frame& frame) { return frame.round == 1; };
  connect_all();
  const auto block = random_block(700'001, 1);
  for (const std::uint64_t round : {1, 2}) {
    transports[0]->send(1, {.type = FrameType::data, .round = round}, payload_of(block));
  }
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data, 2));
  for (const auto& e : recorders[1]->received(0)) EXPECT_EQ(e.intact, e.frame.round == 2);
  EXPECT_EQ(frames_from(0, recorders[1]->events()).size(), 6u);
  EXPECT_EQ(recorders[1]->block(0, FrameType::data, 2), *block);
}

TEST_P(Contract, ChannelsDoNotMix) {
  connect(2);
  std::vector<std::unique_ptr<Recorder>> others;
  std::vector<std::unique_ptr<Transport>> second;
  for (int rank = 0; rank < 2; ++rank) {
    others.push_back(std::make_unique<Recorder>());
    second.push_back(fabric->make(rank, "second"));
    second.back()->start(*others.back());
    second.back()->open(1 - rank);
  }
  ASSERT_TRUE(others[0]->wait_for(Kind::connected, 1));
  transports[0]->send(1, {.type = FrameType::ack, .round = 1});
  second[0]->send(1, {.type = FrameType::ack, .round = 2});
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack, 1));
  ASSERT_TRUE(others[1]->wait_for_frame(0, FrameType::ack, 2));
  EXPECT_EQ(frames_from(0, recorders[1]->events()).size(), 1u);
  EXPECT_EQ(frames_from(0, others[1]->events()).size(), 1u);
  second.clear();
  transports[1]->send(0, {.type = FrameType::ack, .round = 3});
  ASSERT_TRUE(recorders[0]->wait_for_frame(1, FrameType::ack, 3));
  EXPECT_EQ(recorders[0]->times(Kind::disconnected, 1), 0);
}

TEST_P(Contract, PostedWorkRunsOnTheHandlersThreadInOrder) {
  connect(2);
  std::vector<int> order;
  std::promise<std::thread::id> last;
  const Time start = transports[0]->now();
  transports[0]->at(start + std::chrono::milliseconds(400), [&] {
    EXPECT_GE(transports[0]->now(), start + std::chrono::milliseconds(400));
    order.push_back(4);
    last.set_value(std::this_thread::get_id());
  });
  transports[0]->at(start + std::chrono::milliseconds(200), [&] { order.push_back(3); });
  transports[0]->post([&] { order.push_back(1); });
  transports[0]->post([&] { order.push_back(2); });
  EXPECT_EQ(last.get_future().get(), recorders[0]->thread());
  EXPECT_EQ(order, (std::vector{1, 2, 3, 4}));
}

TEST_P(Contract, ManyThreadsMaySendAtOnce) {
  connect(2);
  on_threads(4, [&](int thread) {
    const auto t = static_cast<std::uint32_t>(thread);
    const auto block = random_block(10'000, t);
    for (std::uint64_t i = 0; i < 100; ++i) {
      transports[0]->send(1, {.type = FrameType::ack, .round = i, .block = t});
      transports[0]->send(1, {.type = FrameType::data, .round = i, .block = t}, payload_of(block));
    }
  });
  for (std::uint32_t t = 0; t < 4; ++t) {
    ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack, 99, t));
    ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data, 99, t));
  }
  std::map<std::pair<FrameType, std::uint32_t>, std::uint64_t> next;
  for (const Frame& frame : frames_from(0, recorders[1]->events())) {
    EXPECT_EQ(frame.round, (next[{frame.type, frame.block}]++));
  }
}

TEST_P(Contract, BothDirectionsAtOnce) {
  connect(3);
  const auto block = [](int a, int b, std::uint32_t k) {
    return random_block(2'000'000 + 17 * k, 100 * a + 10 * b + k);
  };
  for (const auto& [a, b] : ordered_pairs(3)) {
    for (std::uint32_t k = 0; k < 8; ++k)
      transports[a]->send(b, {.type = FrameType::data, .block = k}, payload_of(block(a, b, k)));
  }
  for (const auto& [a, b] : ordered_pairs(3)) {
    for (std::uint32_t k = 0; k < 8; ++k) {
      ASSERT_TRUE(recorders[b]->wait_for_frame(a, FrameType::data, 0, k));
      EXPECT_EQ(recorders[b]->block(a, FrameType::data, 0, k), *block(a, b, k));
    }
  }
}

TEST_P(Contract, MistakesOfTheCallerAreRefused) {
  connect(2);
  EXPECT_THROW(transports[0]->open(0), UsageError);
  EXPECT_THROW(transports[0]->open(2), UsageError);
  EXPECT_THROW(transports[0]->open(-1), UsageError);
  EXPECT_THROW(transports[0]->send(2, {.type = FrameType::ack}), UsageError);
  EXPECT_THROW(transports[0]->send(1, {.type = FrameType::data, .total = 9}, payload_of(random_block(10, 1))),
               UsageError);
}

INSTANTIATE_TEST_SUITE_P(Transports, Contract, ::testing::ValuesIn(kits()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace starling
