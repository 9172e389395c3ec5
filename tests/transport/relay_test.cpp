// Edges over TCP through a relay.
#include "relay.h"

#include <gmock/gmock.h>

#include "tcp_edges.h"

namespace starling {
namespace {

using Kind = Recorder::Kind;
using ::testing::Each;
using ::testing::HasSubstr;

class Relayed : public TcpEdges, public ::testing::WithParamInterface<Relay::Towards> {};

TEST_P(Relayed, AChangeOfTheStreamBreaksTheConnectionAndReachesNobody) {
  const int to = GetParam() == Relay::Towards::acceptor ? 0 : 1, from = 1 - to;
  world.size = 2;
  auto first = make(0);
  Relay relay(world, "test");
  add(std::move(first));
  add(make(1));
  connect_all();
  int times = 0;
  for (const Attack attack : kAttacks) {
    SCOPED_TRACE(static_cast<int>(attack));
    const std::size_t before = recorders[to]->received(from).size();
    relay.attack(attack, GetParam());
    const std::uint64_t round = 2 * static_cast<std::uint64_t>(++times);
    const auto block = random_block(600'000, static_cast<unsigned>(times));
    transports[from]->send(to, {.type = FrameType::data, .round = round}, payload_of(block));
    ASSERT_TRUE(recorders[to]->wait_for(Kind::disconnected, from, times));
    EXPECT_EQ(recorders[to]->received(from).size() - before, attack == Attack::repeat ? 1U : 0U);
    for (const int rank : {0, 1})
      ASSERT_TRUE(recorders[rank]->wait_for(Kind::connected, 1 - rank, times + 1));
    // The way is free.
    transports[from]->send(to, {.type = FrameType::data, .round = round + 1}, payload_of(block));
    ASSERT_TRUE(recorders[to]->wait_for_frame(from, FrameType::data, round + 1));
    EXPECT_EQ(recorders[to]->block(from, FrameType::data, round + 1), *block);
  }
  EXPECT_EQ(recorders[to]->times(Kind::disconnected, from), times);
  EXPECT_THAT(recorders[to]->reasons(Kind::disconnected),
              Each(HasSubstr("a frame did not come as it was sent: something between the workers changes")));
  EXPECT_THAT(logged(),
              HasSubstr(fmt::format("worker {} breaks the connection to worker {} at 127.0.0.1:", to, from)));
}
INSTANTIATE_TEST_SUITE_P(Towards, Relayed,
                         ::testing::Values(Relay::Towards::acceptor, Relay::Towards::dialer));

}  // namespace
}  // namespace starling
