// The risks of edges in shared memory: access to the memory, the time of writes, and liars.
#include "starling/transport/mapped/mapped.h"

#include <cstddef>
#include <fstream>
#include <limits>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fabric.h"
#include "peer_process.h"
#include "recorder.h"
#include "signals.h"
#include "starling/transport/mapped/arena.h"
#include "starling/transport/mapped/hand_over.h"
#include "tests/eventually.h"

namespace starling {

std::unique_ptr<Fabric> make_mapped_fabric(int size) {
  return std::make_unique<Loopback>(size, make_mapped_transport);
}

namespace {

using Kind = Recorder::Kind;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr std::size_t kBlock = 700'000;  // more than one chunk

class MappedEdges : public ::testing::Test, protected LoggedWorld {
 protected:
  MappedEdges() : LoggedWorld(2) {}
  // Worker 0 maps memory. Worker 1 does too, unless the test plays it.
  void begin(const MappedOptions& first = {}, const MappedOptions& second = {}) {
    for (const auto& [rank, options] : {std::pair(0, first), std::pair(1, second)}) {
      world.rank = rank;
      transports[rank] = make_mapped_transport_with(options, world, "test");
      start(rank);
    }
    for (int rank : {0, 1}) transports[rank]->open(1 - rank);
    for (int rank : {0, 1}) ASSERT_TRUE(recorders[rank].wait_for(Kind::connected, 1 - rank));
  }
  // Keeps payloads that come in place, if `keeps`.
  void start(int rank) {
    recorders[rank].in_place = [this, rank](int, const Frame& frame, const Payload& payload) {
      const std::lock_guard lock(mutex);
      if (frame.round == kTrial) return true;
      if (keeps) kept[rank].push_back(payload);
      return keeps;
    };
    transports[rank]->start(recorders[rank]);
  }
  // Sends until a payload goes in place.
  void until_mapped(int from) {
    ASSERT_TRUE(eventually([&] {
      const std::uint64_t before = transports[from]->bytes_in_place();
      transports[from]->send(1 - from, {.type = FrameType::data, .round = kTrial},
                             payload_of(transports[from]->buffer(kBlock)));
      return transports[from]->bytes_in_place() > before;
    })) << logged();
  }
  std::shared_ptr<Buffer> filled(int rank, std::byte value) {
    auto block = transports[rank]->buffer(kBlock);
    std::fill(block->begin(), block->end(), value);
    return block;
  }
  // Sends from 0 to 1, in place, and keeps no hold. Returns the address.
  const std::byte* lend(std::byte value, std::uint64_t round) {
    auto block = filled(0, value);
    const std::byte* const at = block->data();
    transports[0]->send(1, {.type = FrameType::data, .round = round}, payload_of(block));
    block.reset();
    EXPECT_TRUE(recorders[1].wait_for_frame(0, FrameType::data, round));
    return at;
  }
  // Whether worker 0 may write there now: whether it is among this many new buffers.
  bool is_given_out(const std::byte* at, int buffers = 20) {
    std::vector<std::shared_ptr<Buffer>> all;
    for (int i = 0; i < buffers; ++i) all.push_back(filled(0, std::byte{0xee}));
    return std::any_of(all.begin(), all.end(), [at](const auto& buffer) { return buffer->data() == at; });
  }
  static bool all_are(const Payload& payload, std::byte value) {
    return !payload.bytes.empty() && std::all_of(payload.bytes.begin(), payload.bytes.end(),
                                                 [value](std::byte b) { return b == value; });
  }
  std::string logged() { return log.text(); }

  static constexpr std::uint64_t kTrial = 1'000'000;
  std::mutex mutex;
  bool keeps = true;
  std::vector<Payload> kept[2];
  Recorder recorders[2];
  std::unique_ptr<Transport> transports[2];  // last: their threads end before anything else goes
};

TEST_F(MappedEdges, APayloadIsReadWhereItLies) {
  begin();
  for (const int from : {0, 1}) {
    until_mapped(from);
    const auto block = filled(from, std::byte{7});
    const std::uint64_t sent = transports[from]->bytes_sent(), in_place = transports[from]->bytes_in_place();
    transports[from]->send(1 - from, {.type = FrameType::data, .dtype = 3, .round = 5, .block = 6},
                           payload_of(block));
    ASSERT_TRUE(recorders[1 - from].wait_for_frame(from, FrameType::data, 5, 6));
    const auto events = recorders[1 - from].received(from);
    const Frame frame = std::ranges::find_if(events, [](const auto& event) {
                          return event.frame.type == FrameType::data && event.frame.round == 5;
                        })->frame;
    EXPECT_EQ(frame.dtype, 3);
    EXPECT_EQ(frame.total, kBlock);
    EXPECT_EQ(frame.length, kBlock);
    const Payload& payload = kept[1 - from].at(0);
    EXPECT_EQ(payload.bytes.size(), kBlock);
    EXPECT_TRUE(all_are(payload, std::byte{7}));
    block->data()[1234] = std::byte{8};  // it is the same memory
    EXPECT_EQ(payload.bytes[1234], std::byte{8});
    EXPECT_EQ(transports[from]->bytes_in_place() - in_place, kBlock);
    EXPECT_GE(transports[from]->bytes_sent() - sent, kBlock);
    EXPECT_THAT(logged(),
                HasSubstr(fmt::format("worker {} reads this worker's blocks in shared memory", 1 - from)));
  }
}

TEST_F(MappedEdges, AHandlerThatWantsChunksGetsThem) {
  keeps = false;
  recorders[1].unwanted = [](const Frame& frame) { return frame.round == 2; };
  begin();
  until_mapped(0);
  for (const std::uint64_t round : {1, 2, 3}) lend(static_cast<std::byte>(round), round);
  EXPECT_GE(transports[0]->bytes_in_place(), 3 * kBlock);
  for (const auto& e : recorders[1].received(0)) {
    if (e.frame.round < kTrial) {
      EXPECT_EQ(e.intact, e.frame.round != 2) << e.frame.round;
      EXPECT_LE(e.frame.length, Frame::kMaxPayload);
    }
  }
  for (const std::uint64_t round : {1, 3})
    EXPECT_EQ(recorders[1].block(0, FrameType::data, round), Bytes(kBlock, static_cast<std::byte>(round)));
}

TEST_F(MappedEdges, NothingIsWrittenToWhileItIsRead) {
  begin();
  until_mapped(0);
  std::set<const std::byte*> lent;
  for (int i = 1; i <= 5; ++i) lent.insert(lend(static_cast<std::byte>(i), static_cast<std::uint64_t>(i)));
  EXPECT_EQ(lent.size(), 5U);
  for (const std::byte* const at : lent) EXPECT_FALSE(is_given_out(at));
  for (int i = 1; i <= 5; ++i) EXPECT_TRUE(all_are(kept[1].at(i - 1), static_cast<std::byte>(i)));
  kept[1].clear();
  for (const std::byte* const at : lent) EXPECT_TRUE(eventually([&] { return is_given_out(at); }));
}

TEST_F(MappedEdges, WhatIsReadOutlivesTheConnection) {
  begin();
  until_mapped(0);
  const std::byte* const at = lend(std::byte{9}, 1);
  for (int times = 2; times <= 4; ++times) {
    transports[times % 2]->reset(1 - times % 2, "because the test wants it");
    for (int rank : {0, 1}) ASSERT_TRUE(recorders[rank].wait_for(Kind::connected, 1 - rank, times));
    until_mapped(0);
    EXPECT_FALSE(is_given_out(at));
    EXPECT_TRUE(all_are(kept[1].at(0), std::byte{9}));
  }
  kept[1].clear();
  EXPECT_TRUE(eventually([&] { return is_given_out(at); }));
}

TEST_F(MappedEdges, WhatIsReadOutlivesBothTransports) {
  begin();
  until_mapped(0);
  lend(std::byte{9}, 1);
  transports[0].reset();
  EXPECT_TRUE(all_are(kept[1].at(0), std::byte{9}));
  transports[1].reset();
  EXPECT_TRUE(all_are(kept[1].at(0), std::byte{9}));
}

TEST_F(MappedEdges, WhoLetsNothingGoIsLentNoMore) {
  begin();
  until_mapped(0);
  for (std::uint64_t round = 1; round <= 20; ++round) lend(static_cast<std::byte>(round), round);
  EXPECT_LT(kept[1].size(), 9U);
  for (std::uint64_t round = 15; round <= 20; ++round)
    EXPECT_EQ(recorders[1].block(0, FrameType::data, round), Bytes(kBlock, static_cast<std::byte>(round)));
}

TEST_F(MappedEdges, MemoryGrowsByTheRegion) {
  MappedOptions small;
  small.region = kBlock;
  begin(small);
  std::vector<std::shared_ptr<Buffer>> blocks;
  for (int i = 0; i < 6; ++i) {
    until_mapped(0);
    blocks.push_back(filled(0, static_cast<std::byte>(i)));
  }
  ASSERT_TRUE(eventually([&] {
    const std::uint64_t before = transports[0]->bytes_in_place();
    for (const auto& block : blocks)
      transports[0]->send(1, {.type = FrameType::data, .round = kTrial}, payload_of(block));
    return transports[0]->bytes_in_place() == before + blocks.size() * kBlock;
  }));
}

// The hand-over fails at one end. Everything sent still arrives.
class AnotherUser : public MappedEdges, public ::testing::WithParamInterface<int> {};

TEST_P(AnotherUser, IsHandedNothingAndHandsOverNothing) {
  MappedOptions options[2];
  options[GetParam()].user = geteuid() + 1;
  begin(options[0], options[1]);
  for (std::uint64_t round = 1; round <= 20; ++round) {
    lend(static_cast<std::byte>(round), round);
    EXPECT_EQ(recorders[1].block(0, FrameType::data, round), Bytes(kBlock, static_cast<std::byte>(round)));
  }
  EXPECT_EQ(transports[0]->bytes_in_place(), 0U);
  EXPECT_EQ(kept[1].size(), 0U);
  if (GetParam() == 0) {
    EXPECT_THAT(logged(), HasSubstr("worker 1 takes no memory from this one (it is another user's)"));
  }
}

INSTANTIATE_TEST_SUITE_P(AtOneEnd, AnotherUser, ::testing::Values(0, 1));

// On this host, of any process. A connection through a door has its name too.
std::set<mapped::Nonce> doors() {
  std::set<mapped::Nonce> all;
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const auto name = line.find("@starling-");
    if (name == std::string::npos || line.size() - name < 74) continue;
    mapped::Nonce door;
    for (std::size_t i = 0; i < door.size(); ++i)
      door[i] = static_cast<std::byte>(std::stoi(line.substr(name + 10 + 2 * i, 2), nullptr, 16));
    all.insert(door);
  }
  return all;
}

bool is_mine(const Descriptor& tie) {
  ucred other{};
  socklen_t size = sizeof other;
  return getsockopt(tie.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.pid == getpid();
}

TEST_F(MappedEdges, WhoDoesNotKnowTheNonceIsShownOut) {
  MappedOptions small;
  small.region = kBlock;
  begin(small, small);
  std::vector<Descriptor> strangers;
  mapped::Arena theirs(1 << 20);
  theirs.add();
  for (const auto& door : doors()) {
    for (int i = 0; i < 3; ++i) {
      std::string why;
      auto tie = mapped::call({door, mapped::Nonce{}}, geteuid(), why);
      if (!tie || !is_mine(*tie)) break;  // another program's, which may have ended since
      EXPECT_TRUE(mapped::give_region(*tie, 0, theirs.descriptor(0)));
      strangers.push_back(std::move(*tie));
    }
  }
  ASSERT_EQ(strangers.size(), 6U);
  // The next hand-over makes both check the other's user.
  for (const int rank : {0, 1}) {
    std::vector<std::shared_ptr<Buffer>> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(filled(rank, std::byte{1}));
    until_mapped(rank);
  }
  for (const Descriptor& stranger : strangers) {
    pollfd poll{.fd = stranger.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(::poll(&poll, 1, 60'000), 1);
    EXPECT_TRUE(std::holds_alternative<mapped::Quiet>(mapped::hear_released(stranger)));
  }
}

// Two callers at once: one has announced itself, the other is connected but has not sent its nonce.
TEST(Door, WhoHasNotSpokenYetIsWaitedFor) {
  mapped::Door door(geteuid());
  sockaddr_un at{.sun_family = AF_UNIX, .sun_path = {}};
  std::string name = "starling-";
  for (const std::byte b : door.name()) name += fmt::format("{:02x}", std::to_integer<unsigned>(b));
  std::copy(name.begin(), name.end(), at.sun_path + 1);
  const Descriptor slow(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(connect(slow.get(), reinterpret_cast<const sockaddr*>(&at), length), 0);
  std::string why;
  mapped::Nonce nonce{std::byte{1}};
  const auto fast = mapped::call({door.name(), nonce}, geteuid(), why);
  ASSERT_TRUE(fast) << why;
  const auto first = door.callers();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].nonce, nonce);
  nonce[0] = std::byte{2};
  ASSERT_EQ(send(slow.get(), nonce.data(), nonce.size(), MSG_NOSIGNAL), static_cast<ssize_t>(nonce.size()));
  const auto second = door.callers();
  ASSERT_EQ(second.size(), 1U);
  EXPECT_EQ(second[0].nonce, nonce);
  EXPECT_TRUE(door.callers().empty());
}

// Worker 1 is a liar, played by the test over TCP.
class Liar : public MappedEdges {
 protected:
  void meet() {
    world.rank = 0;
    transports[0] = make_mapped_transport(world, "test");
    world.rank = 1;
    transports[1] = make_tcp_transport(world, "test");
    for (int rank : {0, 1}) start(rank);
    for (int rank : {0, 1}) transports[rank]->open(1 - rank);
    ASSERT_TRUE(recorders[1].wait_for_frame(0, FrameType::invitation));
    const auto said = recorders[1].block(0, FrameType::invitation);
    ASSERT_EQ(said.size(), mapped::Invitation::kBytes);
    mapped::Invitation invitation;
    std::copy_n(said.begin(), 32, invitation.door.begin());
    std::copy_n(said.begin() + 32, 32, invitation.nonce.begin());
    for (const auto& e : recorders[1].events()) {
      if (e.frame.type == FrameType::invitation) number = e.frame.value;
    }
    std::string why;
    auto made = mapped::call(invitation, geteuid(), why);
    ASSERT_TRUE(made) << why;
    tie = std::move(*made);
  }
  // Whether worker 0 maps it.
  bool hand_over(std::uint32_t region, int memory) {
    EXPECT_TRUE(mapped::give_region(tie, region, memory));
    transports[1]->send(0, {.type = FrameType::handed, .block = region, .value = number});
    EXPECT_TRUE(recorders[1].wait_for_frame(0, FrameType::mapped, 0, region)) << logged();
    for (const auto& e : recorders[1].events()) {
      if (e.frame.type == FrameType::mapped && e.frame.block == region) return e.frame.step == 1;
    }
    return false;
  }
  void lies_at(std::uint64_t round, std::uint64_t total, std::uint64_t invitation, std::uint64_t region,
               std::uint64_t offset) {
    auto bytes = std::make_shared<Bytes>(96);
    const auto head = Frame{.type = FrameType::data, .round = round, .total = total}.encode();
    const std::array numbers{invitation, round, region, offset};
    std::memcpy(bytes->data(), head.data(), head.size());
    std::memcpy(bytes->data() + head.size(), numbers.data(), sizeof numbers);
    transports[1]->send(0, {.type = FrameType::lies_at}, payload_of(bytes));
  }
  std::uint64_t number = 0;
  Descriptor tie;
};

TEST_F(Liar, PlacesOutsideOfTheMemoryAreNotRead) {
  meet();
  mapped::Arena arena(1 << 20);
  arena.add();
  ASSERT_TRUE(hand_over(0, arena.descriptor(0)));
  constexpr std::uint64_t kSize = 1 << 20, kHuge = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t round = 0;
  for (const auto& [total, region, offset] :
       {std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>{8192, 0, kSize - 8191},
        {8192, 0, kSize},
        {8192, 0, kHuge},
        {8192, 0, kHuge - 8191},
        {kSize + 1, 0, 0},
        {kHuge, 0, 0},
        {kHuge, 0, 1},
        {std::uint64_t{1} << 32, 0, 0},
        {8192, 1, 0},
        {8192, kHuge, 0}}) {
    lies_at(++round, total, number, region, offset);
  }
  lies_at(++round, 8192, number + 1, 0, 0);  // of another connection
  const std::uint64_t good = ++round;
  lies_at(good, 8192, number, 0, kSize - 8192);
  ASSERT_TRUE(recorders[0].wait_for_frame(1, FrameType::data, good));
  int deliveries = 0;
  for (const auto& e : recorders[0].received(1)) {
    if (e.frame.type != FrameType::data) continue;
    ++deliveries;
    EXPECT_EQ(e.intact, e.frame.round == good) << e.frame.round;
  }
  EXPECT_EQ(deliveries, 11);  // a message of another connection is not even logged
  EXPECT_EQ(kept[0].size(), 1U);
  EXPECT_THAT(logged(), HasSubstr("which are outside of it"));
  EXPECT_EQ(recorders[0].times(Kind::disconnected, 1), 0);
}

TEST_F(Liar, NonsenseOfWhereAPayloadLiesBreaksTheConnection) {
  meet();
  for (int times = 1; times <= 3; ++times) {
    auto bytes = random_block(96, static_cast<unsigned>(times));
    transports[1]->send(0, {.type = FrameType::lies_at}, payload_of(bytes));
    ASSERT_TRUE(recorders[0].wait_for(Kind::disconnected, 1, times));
    ASSERT_TRUE(recorders[1].wait_for(Kind::connected, 0, times + 1));
  }
}

TEST_F(Liar, MemoryThatCouldShrinkIsNotMapped) {
  meet();
  const Descriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 1 << 20), 0);
  EXPECT_FALSE(hand_over(0, unsealed.get()));
  EXPECT_THAT(logged(), HasSubstr("it could shrink"));
  const Descriptor file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(hand_over(1, file.get()));
  EXPECT_THAT(logged(), HasSubstr("it is not a memfd"));
  const Descriptor empty(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK), 0);
  EXPECT_FALSE(hand_over(2, empty.get()));
  mapped::Arena good(1 << 20);
  good.add();
  EXPECT_TRUE(hand_over(3, good.descriptor(0)));
}

TEST(Arena, NobodyElseMayWriteToItNorShrinkIt) {
  mapped::Arena arena(1 << 20);
  auto buffer = arena.make(10'000);
  ASSERT_TRUE(buffer) << arena.trouble();
  const int memory = arena.descriptor(0);
  EXPECT_EQ(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(memory, 4096), 0);
  EXPECT_NE(write(memory, "x", 1), 1);
  std::fill(buffer->begin(), buffer->end(), std::byte{5});
  const auto place = arena.find(*buffer);
  ASSERT_TRUE(place);
  std::string why;
  const auto mapping = mapped::Mapping::of(Descriptor(dup(memory)), why);
  ASSERT_TRUE(mapping) << why;
  EXPECT_EQ(mapping->bytes().size(), 1U << 20);
  EXPECT_EQ(mapping->bytes()[place->offset + 9'999], std::byte{5});
  EXPECT_FALSE(arena.find(*random_block(100, 1)));
}

// Its blocks would go over TCP for ever.
TEST(Arena, ASignalCostsNoMemory) {
  mapped::Arena arena(1 << 20);
  const Signals signals(std::chrono::microseconds(500));
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(arena.make(16 << 20)) << arena.trouble();
}

// A process that lends and borrows is killed. Its lent blocks can be read, and its borrowed
// ones come back.
TEST_F(MappedEdges, AKilledProcessTakesNothingAlong) {
  world.rank = 0;
  transports[0] = make_mapped_transport(world, "test");
  start(0);
  PeerProcess child({"1", "2", world.token, "test", std::to_string(kBlock)});
  child.say(world.store->get(tcp_address_key("test", 0), milliseconds(1000)));
  world.store->set(tcp_address_key("test", 1), child.hear());
  transports[0]->open(1);
  ASSERT_TRUE(recorders[0].wait_for(Kind::connected, 1));
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return !kept[0].empty();
  }));
  until_mapped(0);
  auto block = filled(0, std::byte{9});
  const std::byte* const at = block->data();
  transports[0]->send(1, {.type = FrameType::data, .round = 77}, payload_of(block));
  block.reset();
  ASSERT_TRUE(recorders[0].wait_for_frame(1, FrameType::ack, 77));  // it reads it
  EXPECT_FALSE(is_given_out(at));
  child.kill();
  ASSERT_TRUE(recorders[0].wait_for(Kind::lost, 1));
  EXPECT_TRUE(all_are(kept[0].at(0), std::byte{1}));
  EXPECT_TRUE(eventually([&] { return is_given_out(at); }));
}

}  // namespace
}  // namespace starling
