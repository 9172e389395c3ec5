// Edges whose payloads go by a process group, between threads that have a Gloo group each.
#include "starling/transport/c10d/group_transport.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <ATen/ATen.h>

#include "fabric.h"
#include "tests/threads.h"
#include "two_ends.h"

namespace starling {
namespace {

class GroupFabric final : public Loopback {
 public:
  explicit GroupFabric(int size)
      : Loopback(size, [this](const World& world, const std::string& channel) {
          return make_[static_cast<std::size_t>(world.rank)](world, channel);
        }) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    make_.resize(static_cast<std::size_t>(size));
    groups.resize(static_cast<std::size_t>(size));
    on_threads(size, [&](int rank) {
      const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
      make_[static_cast<std::size_t>(rank)] = group_transports(*gloo, 1);
      groups[static_cast<std::size_t>(rank)] = gloo;
    });
  }
  std::vector<c10::intrusive_ptr<c10d::ProcessGroupGloo>> groups;  // by rank

 private:
  std::vector<decltype(World::make_transport)> make_;
};

using Kind = Recorder::Kind;

class GroupEdges : public ::testing::Test, protected TwoEnds<GroupFabric> {};

// The user's own operations continue beside ours, also with the tags that users choose.
TEST_F(GroupEdges, LeaveTheGroupToItsUser) {
  std::vector<at::Tensor> sent{at::full({1 << 20}, 7.0)}, got{at::zeros({1 << 20})},
      sums[2] = {{at::ones({1 << 20})}, {at::ones({1 << 20})}};
  const auto receiving = fabric.groups[1]->recv(got, 0, 0);
  const auto first = fabric.groups[0]->allreduce(sums[0]);
  EXPECT_TRUE(a_block_arrives(0, 1));
  const auto sending = fabric.groups[0]->send(sent, 1, 0);
  EXPECT_TRUE(a_block_arrives(0, 2));
  fabric.groups[1]->allreduce(sums[1])->wait();
  first->wait();
  sending->wait();
  receiving->wait();
  EXPECT_TRUE(at::equal(got[0], sent[0]));
  EXPECT_TRUE(at::equal(sums[0][0], at::full({1 << 20}, 2.0)));
  transports[0]->reset(1, "the test wants it");
  ASSERT_TRUE(recorders[0].wait_for(Kind::connected, 1, 2));
  EXPECT_TRUE(a_block_arrives(0, 3));
}

// One wait that times out makes Gloo close all connections of the process.
TEST_F(GroupEdges, GoOverTcpWhereTheGroupHasFailed) {
  EXPECT_TRUE(a_block_arrives(0, 1));
  std::vector<at::Tensor> never{at::zeros({16})};
  EXPECT_ANY_THROW(fabric.groups[0]->recv(never, 1, 0)->wait(std::chrono::milliseconds(10)));
  transports[0]->send(1, {.type = FrameType::data, .round = 2},
                      payload_of(random_block(1'000'000, 2)));  // the lost payload
  ASSERT_TRUE(recorders[0].wait_for(Kind::connected, 1, 2));
  ASSERT_TRUE(recorders[1].wait_for(Kind::connected, 0, 2));
  EXPECT_TRUE(a_block_arrives(0, 3));
  EXPECT_EQ(recorders[0].times(Kind::disconnected, 1), 1);
  EXPECT_EQ(recorders[0].times(Kind::lost, 1) + recorders[1].times(Kind::lost, 0), 0);
}

}  // namespace

std::vector<Kit> kits() {
  const MakeFabric make = [](int size) -> std::unique_ptr<Fabric> {
    return std::make_unique<GroupFabric>(size);
  };
  return {{.name = "c10d", .make = make, .own_frames = 4000, .in_frames = false}};
}

}  // namespace starling
