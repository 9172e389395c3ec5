// Edges whose payloads go by a process group, between threads that have a Gloo group each.
#include "starling/transport/c10d/group_transport.h"

#include <functional>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fabric.h"
#include "recorder.h"

namespace starling {
namespace {

class GroupFabric final : public Fabric {
 public:
  explicit GroupFabric(int size) {
    world_.size = size;
    world_.token = "a secret of these tests";
    world_.address = "127.0.0.1";
    world_.store = std::make_shared<MemoryStore>();
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    make_.resize(static_cast<std::size_t>(size));
    groups.resize(static_cast<std::size_t>(size));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const auto gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
        make_[static_cast<std::size_t>(rank)] = group_transports(*gloo, 1);
        groups[static_cast<std::size_t>(rank)] = gloo;
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  std::unique_ptr<Transport> make(int rank, const std::string& channel) override {
    world_.rank = rank;
    return make_[static_cast<std::size_t>(rank)](world_, channel);
  }

  std::vector<c10::intrusive_ptr<c10d::ProcessGroupGloo>> groups;  // by rank

 private:
  World world_;
  std::vector<decltype(World::make_transport)> make_;
};

using Kind = Recorder::Kind;

class GroupEdges : public ::testing::Test {
 protected:
  GroupEdges() {
    for (int rank = 0; rank < 2; ++rank) {
      transports.push_back(fabric.make(rank, "test"));
      transports.back()->start(recorders[rank]);
    }
    for (int rank = 0; rank < 2; ++rank) transports[rank]->open(1 - rank);
    for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(recorders[rank].wait_for(Kind::connected, 1 - rank));
  }
  // 0 sends a block of 9 MB to 1.
  ::testing::AssertionResult a_block_arrives(std::uint64_t round) {
    const auto block = random_block(9'000'001, static_cast<unsigned>(round));
    transports[0]->send(1, {.type = FrameType::data, .round = round}, payload_of(block));
    if (!recorders[1].wait_for_frame(0, FrameType::data, round))
      return ::testing::AssertionFailure() << "it does not come";
    if (recorders[1].block(0, FrameType::data, round) != *block)
      return ::testing::AssertionFailure() << "another one comes";
    return ::testing::AssertionSuccess();
  }

  GroupFabric fabric{2};
  Recorder recorders[2];
  std::vector<std::unique_ptr<Transport>> transports;  // last: they end before their handlers go
};

// The user's own operations go on beside ours, also with the tags that people choose.
TEST_F(GroupEdges, LeaveTheGroupToItsUser) {
  std::vector<at::Tensor> sent{at::full({1 << 20}, 7.0)}, got{at::zeros({1 << 20})},
      sums[2] = {{at::ones({1 << 20})}, {at::ones({1 << 20})}};
  const auto receiving = fabric.groups[1]->recv(got, 0, 0);
  const auto first = fabric.groups[0]->allreduce(sums[0]);
  EXPECT_TRUE(a_block_arrives(1));
  const auto sending = fabric.groups[0]->send(sent, 1, 0);
  EXPECT_TRUE(a_block_arrives(2));
  fabric.groups[1]->allreduce(sums[1])->wait();
  first->wait();
  sending->wait();
  receiving->wait();
  EXPECT_TRUE(at::equal(got[0], sent[0]));
  EXPECT_TRUE(at::equal(sums[0][0], at::full({1 << 20}, 2.0)));
  transports[0]->reset(1, "the test wants it");
  ASSERT_TRUE(recorders[0].wait_for(Kind::connected, 1, 2));
  EXPECT_TRUE(a_block_arrives(3));
}

// One wait that times out makes Gloo close all connections of the process.
TEST_F(GroupEdges, GoOverTcpWhereTheGroupHasFailed) {
  EXPECT_TRUE(a_block_arrives(1));
  std::vector<at::Tensor> never{at::zeros({16})};
  EXPECT_ANY_THROW(fabric.groups[0]->recv(never, 1, 0)->wait(std::chrono::milliseconds(10)));
  transports[0]->send(1, {.type = FrameType::data, .round = 2},
                      payload_of(random_block(1'000'000, 2)));  // the price
  ASSERT_TRUE(recorders[0].wait_for(Kind::connected, 1, 2));
  ASSERT_TRUE(recorders[1].wait_for(Kind::connected, 0, 2));
  EXPECT_TRUE(a_block_arrives(3));
  EXPECT_EQ(recorders[0].times(Kind::disconnected, 1), 1);
  EXPECT_EQ(recorders[0].times(Kind::lost, 1) + recorders[1].times(Kind::lost, 0), 0);
}

}  // namespace

std::vector<Kit> kits() {
  const MakeFabric make = [](int size) -> std::unique_ptr<Fabric> {
    return std::make_unique<GroupFabric>(size);
  };
  return {{.name = "c10d", .make = make, .own_frames = 4000, .in_frames = false},
          {.name = "lanes", .make = make_lane_fabric, .own_frames = 4000, .in_frames = false}};
}

}  // namespace starling
