// Edges whose payloads go by lanes: between threads, over communicators that stand in for NCCL's, and NCCL itself as far as it goes
// without a GPU.
#include "starling/transport/c10d/nccl_transport.h"

#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fabric.h"
#include "processes.h"
#include "starling/core/error.h"
#include "starling/transport/c10d/find_cuda.h"
#include "two_ends.h"

namespace starling {
namespace {

// Like NCCL's: one end's operation waits for the other's, in order, and an end that is aborted fails the other.
class Switchboard {
 public:
  Communicators::Id new_id() {
    const std::lock_guard lock(mutex_);
    Communicators::Id id{};
    const std::uint64_t number = ++ids_;
    std::memcpy(id.data(), &number, sizeof number);
    return id;
  }
  struct Line {
    std::mutex mutex;
    std::condition_variable changed;
    bool joined[2] = {}, broken = false;
    const std::byte* from = nullptr;  // offered by the end that sends
    std::size_t size = 0;
  };
  std::shared_ptr<Line> join(const Communicators::Id& id, int end) {
    const std::lock_guard lock(mutex_);
    auto& line = lines_[id];
    if (!line) line = std::make_shared<Line>();
    if (line->joined[end]) throw Error("this end has joined before");  // NCCL would hang
    line->joined[end] = true;
    line->changed.notify_all();
    return line;
  }

 private:
  std::mutex mutex_;
  std::uint64_t ids_ = 0;
  std::map<Communicators::Id, std::shared_ptr<Line>> lines_;
};

class FakeCommunicator final : public Communicator {
 public:
  explicit FakeCommunicator(std::shared_ptr<Switchboard::Line> line) : line_(std::move(line)) {}
  ~FakeCommunicator() override { end(); }
  void send(std::span<const std::byte> from) override {
    std::unique_lock lock(line_->mutex);
    line_->from = from.data();
    line_->size = from.size();
    line_->changed.notify_all();
    wait(lock, [&] { return line_->from == nullptr; });
  }
  void receive(std::span<std::byte> to) override {
    std::unique_lock lock(line_->mutex);
    wait(lock, [&] { return line_->from != nullptr; });
    if (line_->size != to.size()) throw Error("the other end sends another length");
    std::memcpy(to.data(), line_->from, to.size());
    line_->from = nullptr;
    line_->changed.notify_all();
  }
  void end() override {
    const std::lock_guard lock(line_->mutex);
    line_->broken = true;
    line_->changed.notify_all();
  }

 private:
  template <class Until>
  void wait(std::unique_lock<std::mutex>& lock, const Until& until) {
    line_->changed.wait(lock, [&] { return line_->broken || until(); });
    if (line_->broken) throw Error("the line is broken");
  }
  const std::shared_ptr<Switchboard::Line> line_;
};

// Of one worker; `refuses`: joins nothing.
class FakeCommunicators final : public Communicators {
 public:
  FakeCommunicators(std::shared_ptr<Switchboard> board, bool refuses)
      : board_(std::move(board)), refuses_(refuses) {}
  std::string name() const override { return "a switchboard"; }
  Id new_id() override { return board_->new_id(); }
  std::unique_ptr<Communicator> join(const Id& id, int end) override {
    if (refuses_) throw Error("no card is free");
    return std::make_unique<FakeCommunicator>(board_->join(id, end));
  }

 private:
  const std::shared_ptr<Switchboard> board_;
  const bool refuses_;
};

class LaneFabric final : public Loopback {
 public:
  explicit LaneFabric(int size, int refuses = -1)
      : Loopback(size, [this](const World& world, const std::string& channel) {
          return make_[static_cast<std::size_t>(world.rank)](world, channel);
        }) {
    world_.log = [this](Level level, const std::string& line) {
      const std::lock_guard lock(mutex_);
      if (level == Level::warning) said_ += line + "\n";
    };
    for (int rank = 0; rank < size; ++rank)
      make_.push_back(nccl_transports([this, refuses, rank]() -> std::unique_ptr<Communicators> {
        return std::make_unique<FakeCommunicators>(board_, rank == refuses);
      }));
  }
  std::string said() {
    const std::lock_guard lock(mutex_);
    return said_;
  }

 private:
  const std::shared_ptr<Switchboard> board_ = std::make_shared<Switchboard>();
  std::mutex mutex_;
  std::string said_;
  std::vector<decltype(World::make_transport)> make_;
};

using Kind = Recorder::Kind;

using Pair = TwoEnds<LaneFabric>;

TEST(Lanes, HaveNewCommunicatorsOnANewConnection) {
  Pair pair;
  for (int times = 1; times <= 3; ++times) {
    const auto round = static_cast<std::uint64_t>(times);
    EXPECT_TRUE(pair.a_block_arrives(0, round));
    EXPECT_TRUE(pair.a_block_arrives(1, round));
    pair.transports[0]->send(
        1, {.type = FrameType::data, .round = 100 + round},
        payload_of(random_block(64 << 20, 1)));  // is under way when the connection breaks
    ASSERT_TRUE(pair.recorders[1].wait([&](const auto& events) {
      return std::any_of(events.begin(), events.end(),
                         [&](const auto& e) { return e.frame.round == 100 + round; });
    }));
    pair.transports[times % 2]->reset(1 - times % 2, "the test wants it");
    for (int rank = 0; rank < 2; ++rank)
      ASSERT_TRUE(pair.recorders[rank].wait_for(Kind::connected, 1 - rank, times + 1));
  }
  EXPECT_TRUE(pair.a_block_arrives(0, 9));
  EXPECT_EQ(pair.fabric.said(), "") << "went on over TCP";
}

TEST(Lanes, GoOverTcpWhereThereIsNoCommunicator) {
  for (const int refuses : {0, 1}) {
    Pair pair(refuses);
    for (int times = 1; times <= 3; ++times) {  // the price
      pair.transports[0]->send(1, {.type = FrameType::data}, payload_of(random_block(1'000'000, 2)));
      for (int rank = 0; rank < 2; ++rank)
        ASSERT_TRUE(pair.recorders[rank].wait_for(Kind::connected, 1 - rank, times + 1));
    }
    EXPECT_TRUE(pair.a_block_arrives(0, 3));
    EXPECT_TRUE(pair.a_block_arrives(1, 4));
    EXPECT_THAT(pair.fabric.said(),
                testing::AllOf(testing::HasSubstr("a switchboard fails with worker"),
                               testing::HasSubstr("no card is free"), testing::HasSubstr("go over TCP")));
  }
}

// The library that came with torch has what is called of it; a communicator is more than can be had without a GPU.
TEST(Nccl, GivesLanesTheirNames) {
  const std::string why = find_cuda();
  if (why.find("cannot be loaded") != std::string::npos) GTEST_SKIP() << why;  // torch without CUDA
  const auto communicators = nccl_communicators(at::kCPU);
  EXPECT_THAT(communicators->name(), testing::StartsWith("NCCL 2."));
  EXPECT_NE(communicators->new_id(), communicators->new_id());
  EXPECT_ANY_THROW(communicators->join(communicators->new_id(), 0));
  if (why.empty()) return;
  EXPECT_THAT(
      failure_of([] { nccl_communicators(); }),
      testing::HasSubstr("STARLING_TRANSPORT='nccl' needs a GPU for each worker: torch finds no CUDA"));
}

}  // namespace

std::unique_ptr<Fabric> make_lane_fabric(int size) { return std::make_unique<LaneFabric>(size); }

}  // namespace starling
