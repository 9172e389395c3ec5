// The faults that the local transport can inject.
#include "starling/transport/local/local.h"

#include "fabric.h"
#include "recorder.h"
#include "starling/core/error.h"

namespace starling {

std::unique_ptr<Fabric> make_local_fabric(int size) {
  struct Local final : Fabric {
    explicit Local(int size) { world.size = size; }
    std::unique_ptr<Transport> make(int rank, const std::string& channel) override {
      world.rank = rank;
      return make_transport(world, channel);
    }
    World world;
    decltype(World::make_transport) make_transport = local_transports();
  };
  return std::make_unique<Local>(size);
}

namespace {

using Kind = Recorder::Kind;
using std::chrono::milliseconds;

struct WithHub {
  std::optional<LocalHub> hub;
};

class LocalFaults : public ::testing::Test, protected WithHub, protected Ends {
 protected:
  void connect(int n, Timeouts timeouts = {}) {
    hub.emplace(n, timeouts);
    for (int rank = 0; rank < n; ++rank) add(hub->endpoint(rank));
    connect_all();
  }
};

TEST_F(LocalFaults, ADelayedEdgeIsLateAndKeepsItsOrder) {
  connect(3);
  hub->delay(0, 1, milliseconds(150));
  const Time start = transports[0]->now();
  transports[0]->send(1, {.type = FrameType::ack, .round = 0});
  transports[0]->send(2, {.type = FrameType::ack});
  transports[1]->send(0, {.type = FrameType::ack});
  ASSERT_TRUE(recorders[2]->wait_for_frame(0, FrameType::ack));
  ASSERT_TRUE(recorders[0]->wait_for_frame(1, FrameType::ack));
  const int early = recorders[1]->times(Kind::received, 0);
  if (transports[0]->now() - start < milliseconds(150)) {
    EXPECT_EQ(early, 0) << "the other edges wait for nobody";
  }
  hub->delay(0, 1, {});
  transports[0]->send(1, {.type = FrameType::ack, .round = 1});
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack, 1));
  EXPECT_GE(transports[0]->now() - start, milliseconds(150));
  EXPECT_EQ(recorders[1]->times(Kind::received, 0), 2);
}

TEST_F(LocalFaults, ASeveredEdgeComesBackWhenMended) {
  connect(3);
  hub->sever(0, 1);
  ASSERT_TRUE(recorders[0]->wait_for(Kind::disconnected, 1));
  ASSERT_TRUE(recorders[1]->wait_for(Kind::disconnected, 0));
  transports[0]->reset(1, "nothing to reset");
  transports[0]->send(1, {.type = FrameType::ack, .round = 1});
  transports[0]->send(2, {.type = FrameType::ack});
  ASSERT_TRUE(recorders[2]->wait_for_frame(0, FrameType::ack));
  EXPECT_EQ(recorders[0]->times(Kind::connected, 1), 1);
  hub->mend(0, 1);
  ASSERT_TRUE(recorders[0]->wait_for(Kind::connected, 1, 2));
  ASSERT_TRUE(recorders[1]->wait_for(Kind::connected, 0, 2));
  transports[0]->send(1, {.type = FrameType::ack, .round = 2});
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack, 2));
  EXPECT_EQ(recorders[1]->times(Kind::received, 0), 1);
  EXPECT_EQ(recorders[0]->times(Kind::lost, 1), 0);
}

TEST_F(LocalFaults, ASeveredEdgeIsLostAfterSilence) {
  connect(2, {.silent = milliseconds(50)});
  hub->sever(0, 1);
  for (int rank = 0; rank < 2; ++rank) ASSERT_TRUE(recorders[rank]->wait_for(Kind::lost, 1 - rank));
  hub->mend(0, 1);
  for (int rank = 0; rank < 2; ++rank) {
    ASSERT_TRUE(recorders[rank]->wait_for(Kind::connected, 1 - rank, 2));
    EXPECT_EQ(recorders[rank]->times(Kind::lost, 1 - rank), 1);
    EXPECT_EQ(recorders[rank]->times(Kind::ended, 1 - rank), 0);
  }
}

TEST_F(LocalFaults, WhoDoesNotComeIsLostAfterTheTimeToMeet) {
  hub.emplace(2, Timeouts{.meet = milliseconds(50)});
  Recorder recorder;
  const auto transport = hub->endpoint(0);
  transport->start(recorder);
  transport->open(1);
  EXPECT_TRUE(recorder.wait_for(Kind::lost, 1));
  EXPECT_EQ(recorder.times(Kind::disconnected, 1), 0);
  transport->stop();
}

TEST_F(LocalFaults, AKilledEndpointIsSilentAndLost) {
  connect(3);
  transports[1]->send(0, {.type = FrameType::ack});
  ASSERT_TRUE(recorders[0]->wait_for_frame(1, FrameType::ack));
  hub->kill(1);
  for (int rank : {0, 2}) {
    ASSERT_TRUE(recorders[rank]->wait_for(Kind::ended, 1));
    EXPECT_EQ(recorders[rank]->times(Kind::lost, 1), 1);
    EXPECT_EQ(recorders[rank]->times(Kind::disconnected, 1), 1);
  }
  EXPECT_EQ(recorders[1]->times(Kind::disconnected, 0), 0);
  transports[1]->send(0, {.type = FrameType::ack, .round = 1});
  transports[1]->post([] { ADD_FAILURE() << "the dead do not work"; });
  transports[2]->send(0, {.type = FrameType::ack});
  ASSERT_TRUE(recorders[0]->wait_for_frame(2, FrameType::ack));
  EXPECT_EQ(recorders[0]->times(Kind::received, 1), 1);
}

TEST_F(LocalFaults, APausedEndpointDoesNothingUntilItIsResumed) {
  connect(2);
  hub->pause(1);
  std::atomic<int> ran = 0;
  transports[1]->post([&] { ++ran; });
  transports[1]->send(0, {.type = FrameType::ack, .round = 1});
  transports[0]->send(1, {.type = FrameType::ack, .round = 2});
  const auto bulk = random_block(1'000'000, 1);
  transports[0]->send(1, {.type = FrameType::data, .round = 3}, payload_of(bulk));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(ran, 0);
  EXPECT_EQ(recorders[1]->times(Kind::received, 0), 0);
  EXPECT_EQ(recorders[0]->times(Kind::received, 1), 0);
  EXPECT_EQ(recorders[0]->times(Kind::disconnected, 1), 0);
  hub->resume(1);
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::ack, 2));
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data, 3));
  ASSERT_TRUE(recorders[0]->wait_for_frame(1, FrameType::ack, 1));
  EXPECT_EQ(recorders[1]->block(0, FrameType::data, 3), *bulk);
  EXPECT_EQ(ran, 1);
}

TEST_F(LocalFaults, ACorruptedPayloadIsToldAndTheConnectionStays) {
  connect(2);
  hub->corrupt_next(0, 1);
  const auto block = random_block(10'000, 1);
  transports[0]->send(1, {.type = FrameType::ack});
  transports[0]->send(1, {.type = FrameType::data, .round = 1}, payload_of(block));
  transports[0]->send(1, {.type = FrameType::data, .round = 2}, payload_of(block));
  ASSERT_TRUE(recorders[1]->wait_for_frame(0, FrameType::data, 2));
  for (const auto& e : recorders[1]->received(0)) EXPECT_EQ(e.intact, e.frame.round != 1) << e.frame.round;
  EXPECT_EQ(recorders[1]->times(Kind::disconnected, 0), 0);
}

TEST_F(LocalFaults, ARankHasOneEndpointAtATime) {
  connect(2);
  EXPECT_THROW(hub->endpoint(0), UsageError);
  EXPECT_THROW(hub->endpoint(2), UsageError);
  transports[0]->stop();
  EXPECT_NO_THROW(hub->endpoint(0));
}

}  // namespace
}  // namespace starling
