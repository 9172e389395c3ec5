// The risks of edges over TCP, between peers that know each other: damage, liars, silence, killed
// processes and stores that are gone. tcp_handshake_test.cpp has the strangers.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>

#include "peer_process.h"
#include "tcp_edges.h"
#include "tests/eventually.h"

namespace starling {

std::unique_ptr<Fabric> make_tcp_fabric(int size) {
  return std::make_unique<Loopback>(size, make_tcp_transport);
}

std::unique_ptr<Fabric> make_sealed_fabric(int size) {
  return std::make_unique<Loopback>(size, [](const World& world, const std::string& channel) {
    return make_tcp_transport_with({.seal_within_host = true}, world, channel);
  });
}

namespace {

using Kind = Recorder::Kind;
using std::chrono::milliseconds;
using ::testing::Each;
using ::testing::HasSubstr;

TEST_F(TcpEdges, AnIntroducedPeerIsHeardAndAnswered) {
  begin();
  auto peer = introduced();
  peer.say(Frame{.type = FrameType::heartbeat, .round = 4}.encode());
  ASSERT_TRUE(recorders[0]->wait_for_frame(2, FrameType::heartbeat, 4));
  transports[0]->send(2, {.type = FrameType::resume, .value = 5});
  std::array<std::byte, Frame::kBytes> header;
  ASSERT_TRUE(peer.hear(header));
  const auto frame = Frame::decode(header);
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->type, FrameType::resume);
  EXPECT_EQ(frame->value, 5u);
}

TEST_F(TcpEdges, AFlippedBitInAHeaderBreaksTheConnectionAndNoOther) {
  begin();
  std::mt19937 random(5);
  for (int times = 1; times <= 10; ++times) {
    auto peer = introduced(times);
    auto header = Frame{.type = FrameType::ack, .round = static_cast<std::uint64_t>(times)}.encode();
    header[random() % header.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    peer.say(header);
    peer.wait_until_closed();
    ASSERT_TRUE(recorders[0]->wait_for(Kind::disconnected, 2, times));
  }
  EXPECT_EQ(recorders[0]->times(Kind::received, 2), 0);
  EXPECT_THAT(recorders[0]->reasons(Kind::disconnected), Each(HasSubstr("with a damaged header")));
  expect_untouched();
}

TEST_F(TcpEdges, LengthsThatCannotBeBreakTheConnection) {
  begin();
  int times = 0;
  for (const auto& [total, offset, length] :
       {std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>{100, 0, 101},
        {~std::uint64_t{0}, 0, 0xffffffff},
        {1 << 30, 0, Frame::kMaxPayload + 1},
        {100, ~std::uint64_t{0} - 50, 100}}) {
    auto peer = introduced(++times);
    peer.say(Frame{.type = FrameType::data, .total = total, .offset = offset, .length = length}.encode());
    peer.wait_until_closed();
    ASSERT_TRUE(recorders[0]->wait_for(Kind::disconnected, 2, times));
  }
  EXPECT_EQ(recorders[0]->times(Kind::received, 2), 0);
  expect_untouched();
}

TEST_F(TcpEdges, AFlippedBitInAPayloadIsToldAndTheConnectionStays) {
  begin();
  auto peer = introduced();
  const auto payload = random_block(10'000, 1);
  for (const std::uint64_t round : {0, 1, 2, 3}) {
    Frame frame{.type = FrameType::data, .round = round, .total = 10'000, .length = 10'000};
    frame.payload_crc = crc32c(*payload);
    Bytes bytes = *payload;
    if (round % 2 == 1) bytes[5'000 + round] ^= std::byte{8};
    peer.say(frame.encode());
    peer.say(bytes);
  }
  ASSERT_TRUE(recorders[0]->wait_for_frame(2, FrameType::data, 3));
  for (const auto& e : recorders[0]->received(2))
    EXPECT_EQ(e.intact, e.frame.round % 2 == 0) << e.frame.round;
  EXPECT_EQ(recorders[0]->times(Kind::disconnected, 2), 0);
  expect_untouched();
}

TEST_F(TcpEdges, APayloadThatEndsInTheMiddleIsNeverDelivered) {
  begin();
  {
    auto peer = introduced();
    peer.say(Frame{.type = FrameType::data, .total = 10'000, .length = 10'000}.encode());
    peer.say(*random_block(9'999, 1));
  }
  ASSERT_TRUE(recorders[0]->wait_for(Kind::disconnected, 2));
  EXPECT_EQ(recorders[0]->times(Kind::received, 2), 0);
  expect_untouched();
}

TEST_F(TcpEdges, DuplicatesAreDeliveredAsTheyCome) {  // the protocol handles their meaning
  begin();
  auto peer = introduced();
  for (int i = 0; i < 2; ++i) peer.say(Frame{.type = FrameType::ack, .round = 1}.encode());
  EXPECT_TRUE(recorders[0]->wait_for(Kind::received, 2, 2));
}

TEST_F(TcpEdges, RandomBytesFromAnIntroducedPeerBreakItsConnectionOnly) {
  begin();
  for (int times = 1; times <= 20; ++times) {
    auto peer = introduced(times);
    peer.say(*random_block(64 + 100 * static_cast<std::size_t>(times), static_cast<unsigned>(times)));
    peer.wait_until_closed();
    ASSERT_TRUE(recorders[0]->wait_for(Kind::disconnected, 2, times));
  }
  expect_untouched();
}

// A peer that has lost its end, and is silent on the old connection.
TEST_F(TcpEdges, ANewConnectionOfAPeerReplacesItsOld) {
  world.timeouts.silent = milliseconds(300);
  begin();
  auto first = introduced();
  auto second = shake_hands(0);
  ASSERT_TRUE(second);
  first.wait_until_closed();
  ASSERT_TRUE(recorders[0]->wait_for(Kind::connected, 2, 2));
  second->say(Frame{.type = FrameType::ack, .round = 1}.encode());
  ASSERT_TRUE(recorders[0]->wait_for_frame(2, FrameType::ack, 1));
  std::vector<Kind> kinds;
  for (const auto& e : recorders[0]->events()) {
    if (e.peer == 2) kinds.push_back(e.kind);
  }
  EXPECT_EQ(kinds, (std::vector{Kind::connected, Kind::disconnected, Kind::connected, Kind::received}));
  expect_untouched();
}

TEST_F(TcpEdges, ASecondProcessOfAConnectedRankIsRefused) {
  world.timeouts.silent = milliseconds(400);
  begin();
  {
    auto first = introduced();
    std::atomic<bool> decided = false;
    bool taken = true;
    std::thread claims([&] {
      taken = shake_hands(0).has_value();
      decided = true;
    });
    while (!decided) {
      first.say(Frame{.type = FrameType::heartbeat}.encode());
      std::this_thread::sleep_for(milliseconds(5));
    }
    claims.join();
    EXPECT_FALSE(taken);
    EXPECT_THAT(logged(),
                HasSubstr("it proved to be worker 2, which is connected: was the run started twice?"));
    EXPECT_EQ(recorders[0]->times(Kind::disconnected, 2), 0);
    first.say(Frame{.type = FrameType::ack, .round = 1}.encode());
    EXPECT_TRUE(recorders[0]->wait_for_frame(2, FrameType::ack, 1));
  }
  introduced(2);
  expect_untouched();
}

// Its end breaks while the next connection waits.
TEST_F(TcpEdges, APeerThatDialsBeforeItsOldConnectionHasBrokenIsNotKeptWaiting) {
  begin();
  std::optional<Stranger> first = introduced();
  std::thread closes([&] {
    std::this_thread::sleep_for(milliseconds(50));
    first.reset();
  });
  EXPECT_TRUE(shake_hands(0));
  EXPECT_TRUE(recorders[0]->wait_for(Kind::connected, 2, 2));
  closes.join();
  EXPECT_THAT(logged(), ::testing::Not(HasSubstr("was the run started twice?")));
}

TEST_F(TcpEdges, WhoNeverComesIsLostAfterTheTimeToMeet) {
  world.timeouts.meet = milliseconds(200);
  begin();
  for (int rank : {0, 1}) {
    ASSERT_TRUE(recorders[rank]->wait_for(Kind::lost, 2));
    EXPECT_EQ(recorders[rank]->times(Kind::disconnected, 2), 0);
  }
  expect_untouched();
}

// As torch's store does if its host is cut off from the network.
TEST_F(TcpEdges, AStoreThatDoesNotAnswerKeepsNobodyFromStopping) {
  struct Hanging final : Store {
    void set(const std::string&, const std::string&) override {}
    std::optional<std::string> look(const std::string&) override { return std::nullopt; }
    std::string get(const std::string&, milliseconds, const Interrupted&) override {
      std::unique_lock lock(mutex);
      asked = true;
      changed.notify_all();
      changed.wait(lock, [&] { return free; });
      returned = true;
      changed.notify_all();
      throw StoreLost("gone");
    }
    bool wait(const bool& what) {
      std::unique_lock lock(mutex);
      return changed.wait_for(lock, std::chrono::seconds(60), [&] { return what; });
    }
    std::mutex mutex;
    std::condition_variable changed;
    bool asked = false, free = false, returned = false;
  };
  const auto store = std::make_shared<Hanging>();
  world.store = store;
  Recorder recorder;
  world.rank = 0;
  auto transport = make_tcp_transport(world, "hanging");
  transport->start(recorder);
  ASSERT_TRUE(store->wait(store->asked));
  transport.reset();
  {
    const std::lock_guard lock(store->mutex);
    EXPECT_FALSE(store->returned);
    store->free = true;
  }
  // The thread that was left behind ends without the objects that are gone, and without a word.
  store->changed.notify_all();
  EXPECT_TRUE(store->wait(store->returned));
  EXPECT_TRUE(eventually([&] { return store.use_count() == 2; }));  // this one, and the world's
  EXPECT_EQ(logged(), "");
}

TEST_F(TcpEdges, APeerThatListensButDoesNotComeBackIsLostAfterSilence) {
  world.timeouts.silent = milliseconds(300);
  begin();
  // Worker 2's listener exists, but does not accept, like a stopped process.
  const int listener = listen_as(2);
  introduced();
  ASSERT_TRUE(recorders[0]->wait_for(Kind::lost, 2));
  EXPECT_THAT(recorders[0]->reasons(Kind::lost), Each(HasSubstr("no connection within 0.3 s")));
  auto peer = shake_hands(0);
  ASSERT_TRUE(peer);
  EXPECT_TRUE(recorders[0]->wait_for(Kind::connected, 2, 2));
  EXPECT_EQ(recorders[0]->times(Kind::lost, 2), 1);
  EXPECT_EQ(recorders[0]->times(Kind::ended, 2), 0);
  close(listener);
  expect_untouched();
}

// Three workers, one of them a process of its own, which is killed.
class KilledProcess : public TcpEdges, public ::testing::WithParamInterface<int> {};

TEST_P(KilledProcess, IsLostByBothAndTheirEdgeGoesOn) {
  const int victim = GetParam();
  const int others[2] = {victim == 0 ? 1 : 0, victim == 2 ? 1 : 2};
  for (int rank : others) add(make(rank));

  PeerProcess child({std::to_string(victim), "3", world.token, "test"});
  for (int rank : others) child.say(published(rank));
  world.store->set(tcp_address_key("test", victim), child.hear());

  for (int i : {0, 1}) {
    transports[i]->open(victim);
    transports[i]->open(others[1 - i]);
  }
  for (int i : {0, 1}) {
    ASSERT_TRUE(recorders[i]->wait_for(Kind::connected, victim));
    ASSERT_TRUE(recorders[i]->wait_for(Kind::connected, others[1 - i]));
    ASSERT_TRUE(recorders[i]->wait_for_frame(victim, FrameType::heartbeat));
    // It dies in the middle of a block.
    transports[i]->send(victim, {.type = FrameType::data}, payload_of(random_block(16 << 20, 1)));
  }
  child.kill();
  for (int i : {0, 1}) {
    EXPECT_TRUE(recorders[i]->wait_for(Kind::ended, victim));
    EXPECT_EQ(recorders[i]->times(Kind::lost, victim), 1);
    EXPECT_EQ(recorders[i]->times(Kind::disconnected, victim), 1);
    EXPECT_EQ(recorders[i]->times(Kind::disconnected, others[1 - i]), 0);
    EXPECT_THAT(recorders[i]->reasons(Kind::lost), Each(HasSubstr("its process has ended")));
    transports[i]->send(others[1 - i], {.type = FrameType::ack});
    EXPECT_TRUE(recorders[1 - i]->wait_for_frame(others[i], FrameType::ack));
  }
}
INSTANTIATE_TEST_SUITE_P(AnyRank, KilledProcess, ::testing::Values(0, 1, 2));

// The open sockets, and whether a program that this one starts closes them. By /proc alone: the
// transport's thread may close a socket meanwhile.
std::map<int, bool> sockets() {
  std::map<int, bool> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    if (!std::filesystem::read_symlink(entry, closed).string().starts_with("socket:")) continue;
    const std::string number = entry.path().filename();
    std::ifstream info("/proc/self/fdinfo/" + number);
    int flags = 0;
    for (std::string word; info >> word;) {
      if (word == "flags:") info >> std::oct >> flags;
    }
    all[std::stoi(number)] = (flags & O_CLOEXEC) != 0;
  }
  return all;
}

// A program that this one starts would keep its port open after its end.
TEST_F(TcpEdges, NoProgramInheritsASocket) {
  const std::map<int, bool> before = sockets();
  begin();
  EXPECT_GE(sockets().size(), before.size() + 4);  // two listeners, and both ends of the edge
  EXPECT_TRUE(eventually([&] {
    return std::ranges::all_of(
        sockets(), [&](const auto& socket) { return before.contains(socket.first) || socket.second; });
  }));
}

class LostStore final : public Store {
 public:
  void set(const std::string&, const std::string&) override { throw StoreLost("gone"); }
  std::optional<std::string> look(const std::string&) override { throw StoreLost("gone"); }
  std::string get(const std::string&, milliseconds, const Interrupted&) override {
    ++asked;
    throw StoreLost("gone");
  }
  std::atomic<int> asked = 0;
};

TEST_F(TcpEdges, AWorkerThatEndedBeforeItListenedIsLost) {
  world.timeouts.meet = std::chrono::hours(1);
  world.fate = [](int rank) { return std::string(rank == 1 ? "was killed by signal 9" : ""); };
  Recorder recorder;
  const auto transport = make_tcp_transport(world, "0");
  transport->start(recorder);
  transport->open(1);
  transport->open(2);
  EXPECT_TRUE(recorder.wait([](const Recorder::Events& events) {
    return events.size() == 2 && events[0].kind == Kind::lost && events[0].peer == 1 &&
           events[0].reason == "worker 1: it was killed by signal 9" && events[1].kind == Kind::ended;
  }));
  transport->stop();
}

// It does not come back.
TEST(AddressBook, AStoreThatIsGoneIsAskedOnce) {
  const auto store = std::make_shared<LostStore>();
  std::vector<std::string> said;
  {
    World world;
    world.size = 8;
    world.store = store;
    world.log = [&](Level, const std::string& message) { said.push_back(message); };
    tcp::AddressBook book(
        world, "0", [](int, const tcp::Tcp::endpoint&) { ADD_FAILURE(); },
        [](int, const std::string&) { ADD_FAILURE(); }, [](int) { ADD_FAILURE(); });
    book.start();
    ASSERT_TRUE(eventually([&] { return store->asked > 0; }));
    for (int i = 0; i < 50; ++i) {  // as links do whose peers are lost
      std::this_thread::sleep_for(milliseconds(10));
      book.refresh(1 + i % 7);
    }
  }
  EXPECT_LT(store->asked, 7) << "it is asked once a second";
  EXPECT_THAT(said, ::testing::ElementsAre(
                        "gone: until it is back, workers that restart at another address are not found"));
}

// Most places of a run may be empty.
TEST(AddressBook, AWorkerThatIsSoughtIsNotFoundLaterForOthersThatAreMissing) {
  struct Empty final : Store {
    void set(const std::string&, const std::string&) override {}
    std::optional<std::string> look(const std::string&) override { return std::nullopt; }
    std::string get(const std::string& key, milliseconds patience, const Interrupted&) override {
      const std::lock_guard lock(mutex);
      asked.emplace_back(key, patience);
      throw Error("nobody has set it");
    }
    // The patience of one round: from a query for this key to the next one. Nothing: there is none.
    std::optional<milliseconds> round(const std::string& key) {
      const std::lock_guard lock(mutex);
      const auto is_it = [&](const auto& query) { return query.first == key; };
      const auto first = std::ranges::find_if(asked, is_it);
      if (first == asked.end()) return std::nullopt;
      const auto next = std::find_if(first + 1, asked.end(), is_it);
      if (next == asked.end()) return std::nullopt;
      milliseconds all{0};
      for (auto query = first; query != next; ++query) all += query->second;
      return all;
    }
    std::mutex mutex;
    std::vector<std::pair<std::string, milliseconds>> asked;
  };
  const auto store = std::make_shared<Empty>();
  World world;
  world.size = 31;
  world.store = store;
  tcp::AddressBook book(
      world, "0", [](int, const tcp::Tcp::endpoint&) { ADD_FAILURE(); },
      [](int, const std::string&) { ADD_FAILURE(); }, [](int) { ADD_FAILURE(); });
  book.refresh(30);
  book.start();
  const std::string sought = tcp_address_key("0", 30);
  ASSERT_TRUE(eventually([&] { return store->round(sought).has_value(); }));
  EXPECT_LE(*store->round(sought), milliseconds(100));
  // All are asked for in time.
  ASSERT_TRUE(eventually([&] {
    const std::lock_guard lock(store->mutex);
    std::set<std::string> keys;
    for (const auto& [key, patience] : store->asked) keys.insert(key);
    return keys.size() == 30;
  }));
}

}  // namespace
}  // namespace starling
