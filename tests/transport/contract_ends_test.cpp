// The contract of transport.h, for every transport: edges that break and workers that go.
#include <atomic>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "contract.h"

namespace starling {

// The worker goes, is lost once, and comes back. The edge between the other two sees nothing of it.
void Contract::lose_and_regain(int victim) {
  connect(3);
  const int a = (victim + 1) % 3, b = (victim + 2) % 3;
  transports[victim].reset();
  for (int peer : {a, b}) {
    ASSERT_TRUE(recorders[peer]->wait_for(Recorder::Kind::lost, victim));
    EXPECT_EQ(recorders[peer]->times(Recorder::Kind::disconnected, victim), 1);
    EXPECT_THAT(recorders[peer]->reasons(Recorder::Kind::lost),
                testing::Each(testing::HasSubstr(std::to_string(victim))));
  }
  transports[a]->send(b, {.type = FrameType::ack});
  EXPECT_TRUE(recorders[b]->wait_for_frame(a, FrameType::ack));

  recorders[victim] = std::make_unique<Recorder>();
  transports[victim] = fabric->make(victim, "test");
  transports[victim]->start(*recorders[victim]);
  for (int peer : {a, b}) transports[victim]->open(peer);
  for (int peer : {a, b}) {
    ASSERT_TRUE(recorders[victim]->wait_for(Recorder::Kind::connected, peer));
    ASSERT_TRUE(recorders[peer]->wait_for(Recorder::Kind::connected, victim, 2));
    transports[peer]->send(victim, {.type = FrameType::ack});
    EXPECT_TRUE(recorders[victim]->wait_for_frame(peer, FrameType::ack));
    EXPECT_EQ(recorders[peer]->times(Recorder::Kind::lost, victim), 1);
  }
  EXPECT_EQ(recorders[a]->times(Recorder::Kind::disconnected, b), 0);
  EXPECT_EQ(recorders[b]->times(Recorder::Kind::disconnected, a), 0);
}

namespace {

using Kind = Recorder::Kind;

TEST_P(Contract, AStoppedPeerIsLostOnceAndMayComeBack) { lose_and_regain(1); }
TEST_P(Contract, TheLowestRankIsNoSpecialRank) { lose_and_regain(0); }
TEST_P(Contract, TheHighestRankIsNoSpecialRank) { lose_and_regain(2); }

TEST_P(Contract, AResetConnectionComesBack) {
  connect(3);
  for (int times = 2; times <= 6; ++times) {
    transports[times % 2]->reset(1 - times % 2, "because the test wants it");
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(recorders[rank]->wait_for(Kind::disconnected, 1 - rank, times - 1));
      ASSERT_TRUE(recorders[rank]->wait_for(Kind::connected, 1 - rank, times));
    }
    for (int rank = 0; rank < 2; ++rank) {
      transports[rank]->send(1 - rank, {.type = FrameType::ack, .round = static_cast<std::uint64_t>(times)});
    }
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(
          recorders[rank]->wait_for_frame(1 - rank, FrameType::ack, static_cast<std::uint64_t>(times)));
    }
  }
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(recorders[rank]->times(Kind::lost, 1 - rank), 0);
    EXPECT_EQ(recorders[rank]->times(Kind::disconnected, 2), 0) << "another edge suffered";
  }
  EXPECT_EQ(recorders[2]->times(Kind::disconnected, 0) + recorders[2]->times(Kind::disconnected, 1), 0);
  EXPECT_EQ(recorders[0]->reasons(Kind::disconnected).at(0), "because the test wants it");
}

// A process that was forked from the program, such as one that loads data. It has all descriptors.
class Forked {
 public:
  Forked() : id_(fork()) {
    if (id_ == 0) alarm(100);
    while (id_ == 0) pause();
    EXPECT_GT(id_, 0);
  }
  ~Forked() {
    if (id_ < 0) return;
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  Forked(const Forked&) = delete;

 private:
  const pid_t id_;
};

TEST_P(Contract, AForkedProcessKeepsNoConnectionAlive) {
  connect(2);
  for (int times = 1; times <= 2; ++times) {
    const Forked loader;
    transports[times % 2]->reset(1 - times % 2, "because the test wants it");
    for (int rank = 0; rank < 2; ++rank) {
      ASSERT_TRUE(recorders[rank]->wait_for(Kind::disconnected, 1 - rank, times));
      ASSERT_TRUE(recorders[rank]->wait_for(Kind::connected, 1 - rank, times + 1));
    }
  }
  const Forked loader;
  transports[1].reset();
  EXPECT_TRUE(recorders[0]->wait_for(Kind::ended, 1));
}

TEST_P(Contract, NothingOfABrokenConnectionArrivesOnTheNext) {
  connect(2);
  ASSERT_TRUE(bulk_is_under_way());
  transports[0]->reset(1, "test");
  // Just before, or dropped: either is correct.
  transports[0]->send(1, {.type = FrameType::ack, .round = 1});
  ASSERT_TRUE(recorders[0]->wait_for(Kind::connected, 1, 2));
  transports[0]->send(1, {.type = FrameType::ack, .round = 2});
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack, 2));
  const auto events = recorders[1]->events();
  const auto broke =
      std::find_if(events.begin(), events.end(), [](const auto& e) { return e.kind == Kind::disconnected; });
  EXPECT_EQ(frames_from(0, {broke, events.end()}).size(), 1u);
  EXPECT_LT(frames_from(0, {events.begin(), broke}).size(), 64u * 4);
}

TEST_P(Contract, NoCallAfterStop) {
  connect(2);
  ASSERT_TRUE(bulk_is_under_way());
  std::atomic<bool> stopped = false;
  std::atomic<int> late = 0;
  const auto tick = [&] { late += stopped; };
  for (int i = 0; i < 200; ++i) transports[1]->at(transports[1]->now() + std::chrono::milliseconds(i), tick);
  transports[1]->stop();
  stopped = true;
  const std::size_t events = recorders[1]->events().size();
  ASSERT_TRUE(recorders[0]->wait_for(Kind::lost, 1));
  EXPECT_EQ(recorders[1]->events().size(), events);
  EXPECT_EQ(late, 0);
  transports[1]->send(0, {.type = FrameType::ack});  // harmless
  transports[1]->open(0);
  transports[1]->reset(0, "harmless");
  transports[1]->post(tick);
  transports[1]->stop();
}

TEST_P(Contract, AFarewellArrives) {
  connect(4);
  const auto bulk = random_block(64 << 20, 1);
  transports[3]->send(0, {.type = FrameType::data},
                      payload_of(bulk));  // the leaver is busy with another worker's bulk
  for (int peer : {0, 1, 2}) transports[3]->send(peer, {.type = FrameType::leave});
  transports[3]->stop();
  for (int peer : {1, 2}) EXPECT_TRUE(recorders[peer]->wait_for_frame(3, FrameType::leave));
  for (int peer : {0, 1, 2}) {
    EXPECT_TRUE(recorders[peer]->wait_for(Kind::lost, 3));
    const auto frames = frames_from(3, recorders[peer]->events());
    EXPECT_TRUE(
        std::any_of(frames.begin(), frames.end(), [](const Frame& f) { return f.type == FrameType::leave; }));
  }
}

TEST_P(Contract, AFarewellArrivesThoughTheLeaverIsBeingSentTo) {
  connect(2);
  ASSERT_TRUE(bulk_is_under_way());
  transports[1]->send(0, {.type = FrameType::leave});
  transports[1]->stop();
  EXPECT_TRUE(recorders[0]->wait_for_frame(1, FrameType::leave));
}

}  // namespace
}  // namespace starling
