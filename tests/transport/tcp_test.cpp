// The risks of edges over TCP: strangers, liars and killed processes.
#include "starling/transport/tcp/tcp.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fabric.h"
#include "peer_process.h"
#include "recorder.h"
#include "starling/core/error.h"
#include "starling/transport/tcp/address_book.h"
#include "starling/transport/tcp/proof.h"
#include "tests/eventually.h"

namespace starling {

std::unique_ptr<Fabric> make_tcp_fabric(int size) {
  return std::make_unique<Loopback>(size, make_tcp_transport);
}

namespace {

using Kind = Recorder::Kind;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

// A raw socket with which a test plays any role.
class Stranger {
 public:
  explicit Stranger(const std::string& address) {
    const std::size_t colon = address.rfind(':');
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.substr(colon + 1))));
    EXPECT_EQ(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr), 1);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0) << address;
  }
  Stranger(Stranger&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Stranger(const Stranger&) = delete;
  ~Stranger() {
    if (fd_ >= 0) close(fd_);
  }

  // False if the other end has closed.
  bool say(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // False if the other end has closed.
  bool hear(std::span<std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t got = ::recv(fd_, bytes.data(), bytes.size(), 0);
      if (got <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(got));
    }
    return true;
  }
  // Waits until the other end closes. True if it sent nothing before.
  bool is_closed_without_a_word() {
    std::byte byte;
    return ::recv(fd_, &byte, 1, 0) <= 0;
  }
  void wait_until_closed() {
    std::byte bytes[4096];
    while (::recv(fd_, bytes, sizeof bytes, 0) > 0) {
    }
  }
  bool is_open() {
    pollfd poll{.fd = fd_, .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, 0) == 0;
  }

 private:
  int fd_ = -1;
};

struct WithLog {
  World world;
  TcpOptions options;
  std::mutex log_mutex;
  std::string log;
};

class TcpEdges : public ::testing::Test, protected WithLog, protected Ends {
 protected:
  TcpEdges() {
    world.size = 3;
    world.token = "the right token";
    world.address = "127.0.0.1";
    world.store = std::make_shared<MemoryStore>();
    world.log = [this](Level, const std::string& line) {
      const std::lock_guard lock(log_mutex);
      log += line + "\n";
    };
  }
  std::unique_ptr<Transport> make(int rank) {
    world.rank = rank;
    return make_tcp_transport_with(options, world, "test");
  }
  // Workers 0 and 1 of three are up and connected; 2 is played by the test.
  void begin() {
    for (int rank : {0, 1}) {
      add(make(rank));
      transports[rank]->open(1 - rank);
      transports[rank]->open(2);
    }
    for (int rank : {0, 1}) ASSERT_TRUE(recorders[rank]->wait_for(Kind::connected, 1 - rank));
  }
  std::string published(int rank) {
    return world.store->get(tcp_address_key("test", rank), milliseconds(1000));
  }
  std::string address_of(int rank) {
    const std::string said = published(rank);
    return said.substr(0, said.find(' '));
  }
  tcp::Identity rank_2() { return {2, 3, "test", world.token}; }

  // As worker 2, correctly. With `identity` and `hello` changed, incorrectly.
  std::optional<Stranger> shake_hands(int peer, const tcp::Identity& identity, const tcp::Hello& hello) {
    Stranger stranger(address_of(peer));
    const auto said = hello.encode();
    tcp::Challenge::Message challenge;
    tcp::Digest proof;
    if (!stranger.say(said) || !stranger.hear(challenge)) return std::nullopt;
    EXPECT_TRUE(tcp::is_challenge(challenge));
    if (!stranger.say(tcp::prove(identity.token, tcp::Role::dialer, said, challenge))) return std::nullopt;
    if (!stranger.hear(proof)) return std::nullopt;
    EXPECT_EQ(proof, tcp::prove(world.token, tcp::Role::acceptor, said, challenge));
    return stranger;
  }
  std::optional<Stranger> shake_hands(int peer) {
    return shake_hands(peer, rank_2(), tcp::Hello::of(rank_2(), peer));
  }

  // The same, and worker 0 has accepted it, for the n-th time.
  Stranger introduced(int times = 1) {
    auto peer = shake_hands(0);
    if (!peer || !recorders[0]->wait_for(Kind::connected, 2, times)) throw Error("worker 0 did not accept");
    return std::move(*peer);
  }
  // A socket that listens at the address of this worker.
  int listen_as(int rank) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof any;
    EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any), 0);
    EXPECT_EQ(listen(listener, 64), 0);
    EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&any), &length), 0);
    const std::string address = fmt::format("127.0.0.1:{}", ntohs(any.sin_port));
    world.store->set(tcp_address_key("test", rank),
                     tcp::signed_address({rank, world.size, "test", world.token}, rank, address));
    return listener;
  }

  // The edge between 0 and 1 works without interruption, and worker 2 was never considered
  // connected.
  void expect_untouched() {
    static std::uint64_t round = 0;
    const std::uint64_t now = ++round;
    for (int rank : {0, 1}) {
      transports[rank]->send(1 - rank, {.type = FrameType::ack, .round = now});
      EXPECT_TRUE(recorders[1 - rank]->wait_for_frame(rank, FrameType::ack, now));
      EXPECT_EQ(recorders[rank]->times(Kind::disconnected, 1 - rank), 0);
    }
  }
  std::string logged() {
    const std::lock_guard lock(log_mutex);
    return log;
  }
};

TEST_F(TcpEdges, ListensOnTheGivenAddressOnly) {
  begin();
  EXPECT_THAT(address_of(0), ::testing::StartsWith("127.0.0.1:"));
  world.address = "0.0.0.0";
  EXPECT_THROW(make(2), UsageError);
  world.address = "::";
  EXPECT_THROW(make(2), UsageError);
  world.address = "";
  EXPECT_THROW(make(2), UsageError);
  world.address = "no such host.invalid";
  EXPECT_THROW(make(2), Error);
  world.address = "192.0.2.1";  // no host's address (RFC 5737)
  EXPECT_THROW(make(2), Error);
}

TEST_F(TcpEdges, WithoutATokenOnlyLoopbackIsAllowed) {
  world.token = "";
  world.address = "192.0.2.1";
  try {
    make(0);
    ADD_FAILURE() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("STARLING_TOKEN_FILE"));
    EXPECT_THAT(error.what(), HasSubstr("192.0.2.1"));
  }
  world.address = "127.0.0.1";
  begin();
  expect_untouched();
}

TEST_F(TcpEdges, SpeaksIPv6) {
  world.address = "::1";
  begin();
  EXPECT_THAT(address_of(0), ::testing::StartsWith("[::1]:"));
  expect_untouched();
}

TEST_F(TcpEdges, RandomBytesAreRefused) {
  begin();
  for (unsigned seed = 0; seed < 50; ++seed) {
    Stranger stranger(address_of(0));
    stranger.say(*random_block(tcp::Hello::kBytes + seed * 100, seed));
    EXPECT_TRUE(stranger.is_closed_without_a_word());
  }
  EXPECT_THAT(logged(), HasSubstr("does not speak Starling's protocol"));
  EXPECT_LT(std::ranges::count(logged(), '\n'), 50) << "the log is flooded";
  expect_untouched();
  EXPECT_EQ(recorders[0]->times(Kind::connected, 2), 0);
}

TEST_F(TcpEdges, AFrameInsteadOfAHelloIsRefused) {
  begin();
  Stranger stranger(address_of(0));
  const auto frame = Frame{.type = FrameType::leave}.encode();
  stranger.say(frame);
  stranger.say(frame);
  EXPECT_TRUE(stranger.is_closed_without_a_word());
  expect_untouched();
}

TEST_F(TcpEdges, AWrongHelloIsRefusedBeforeAnyChallenge) {
  begin();
  const auto wrong = [&](const char* what, auto change) {
    tcp::Hello hello = tcp::Hello::of(rank_2(), 0);
    change(hello);
    Stranger stranger(address_of(0));
    stranger.say(hello.encode());
    EXPECT_TRUE(stranger.is_closed_without_a_word()) << what;
  };
  wrong("version", [](tcp::Hello& hello) { ++hello.version; });
  wrong("world size", [](tcp::Hello& hello) { hello.size = 4; });
  wrong("another worker", [](tcp::Hello& hello) { hello.to = 1; });
  wrong("no such worker", [](tcp::Hello& hello) { hello.to = 3; });
  wrong("no such rank", [](tcp::Hello& hello) { hello.from = 3; });
  wrong("a huge rank", [](tcp::Hello& hello) { hello.from = 0xffffffff; });
  wrong("my own rank", [](tcp::Hello& hello) { hello.from = 0; });
  wrong("another channel", [](tcp::Hello& hello) { hello.channel[31] ^= std::byte{1}; });
  EXPECT_THAT(logged(), HasSubstr("version 2"));
  for (std::size_t i = 0; i < 8; ++i) {
    auto message = tcp::Hello::of(rank_2(), 0).encode();
    message[i] ^= std::byte{1};
    Stranger stranger(address_of(0));
    stranger.say(message);
    EXPECT_TRUE(stranger.is_closed_without_a_word()) << "magic";
  }
  expect_untouched();
}

TEST_F(TcpEdges, AWrongTokenIsRefused) {
  begin();
  for (const std::string token : {"", "the wrong token", "the right toke", "the right token "}) {
    tcp::Identity liar = rank_2();
    liar.token = token;
    EXPECT_FALSE(shake_hands(0, liar, tcp::Hello::of(liar, 0))) << token;
  }
  EXPECT_THAT(logged(), HasSubstr("does not have this run's token"));
  EXPECT_THAT(logged(), ::testing::Not(HasSubstr("right token")));
  expect_untouched();
  EXPECT_EQ(recorders[0]->times(Kind::connected, 2), 0);
  ASSERT_TRUE(shake_hands(0));
  EXPECT_TRUE(recorders[0]->wait_for(Kind::connected, 2));
}

TEST_F(TcpEdges, AProofCannotBeReplayedNorReflected) {
  begin();
  const auto hello = tcp::Hello::of(rank_2(), 0).encode();
  tcp::Challenge::Message challenge;
  tcp::Digest welcome;
  Stranger honest(address_of(0));
  honest.say(hello);
  ASSERT_TRUE(honest.hear(challenge));
  const auto proof = tcp::prove(world.token, tcp::Role::dialer, hello, challenge);
  honest.say(proof);
  ASSERT_TRUE(honest.hear(welcome));
  ASSERT_TRUE(recorders[0]->wait_for(Kind::connected, 2));
  for (const auto& stolen : {proof, welcome}) {
    tcp::Challenge::Message other;
    Stranger thief(address_of(0));
    thief.say(hello);
    ASSERT_TRUE(thief.hear(other));
    EXPECT_NE(other, challenge);
    thief.say(stolen);
    EXPECT_TRUE(thief.is_closed_without_a_word());
  }
  expect_untouched();
  EXPECT_EQ(recorders[0]->times(Kind::connected, 2), 1);
}

TEST_F(TcpEdges, TwoRunsWithDifferentTokensStayApart) {
  world.size = 2;
  world.timeouts.meet = milliseconds(3000);
  Recorder first, second;
  const auto transport = make(0);
  world.token = "another run's token";
  const auto stranger = make(1);
  transport->start(first);
  stranger->start(second);
  transport->open(1);
  stranger->open(0);
  ASSERT_TRUE(first.wait_for(Kind::lost, 1));
  ASSERT_TRUE(second.wait_for(Kind::lost, 0));
  EXPECT_EQ(first.times(Kind::connected, 1) + second.times(Kind::connected, 0), 0);
  EXPECT_THAT(logged(), HasSubstr("worker 0 in the store is not signed with this run's token"));
  stranger->stop();
  transport->stop();
}

// The dialer authenticates the acceptor too: an impostor took the place of worker 0 in the store.
TEST_F(TcpEdges, AnImpostorThatIsDialledIsRefused) {
  world.size = 2;
  world.timeouts.meet = milliseconds(3000);
  const int listener = listen_as(0);
  std::thread impostor([&] {
    for (int fd; (fd = accept(listener, nullptr, nullptr)) >= 0; close(fd)) {
      std::byte hello[tcp::Hello::kBytes], proof[32];
      const auto challenge = tcp::Challenge::fresh().encode();
      const auto welcome = *random_block(32, 1);
      if (recv(fd, hello, sizeof hello, MSG_WAITALL) <= 0) continue;
      ::send(fd, challenge.data(), challenge.size(), MSG_NOSIGNAL);
      if (recv(fd, proof, sizeof proof, MSG_WAITALL) <= 0) continue;
      ::send(fd, welcome.data(), welcome.size(), MSG_NOSIGNAL);
    }
  });
  Recorder recorder;
  const auto transport = make(1);
  transport->start(recorder);
  transport->open(0);
  EXPECT_TRUE(recorder.wait_for(Kind::lost, 0));
  EXPECT_THAT(recorder.events().front().reason, HasSubstr("could not prove the token"));
  EXPECT_EQ(recorder.times(Kind::connected, 0), 0);
  transport->stop();
  shutdown(listener, SHUT_RDWR);
  impostor.join();
  close(listener);
}

TEST_F(TcpEdges, SilenceAtEveryStepOfTheHandshakeIsCutOff) {
  options.handshake = milliseconds(500);
  begin();
  const auto hello = tcp::Hello::of(rank_2(), 0).encode();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, hello.size() / 2, hello.size()}) {
    Stranger stranger(address_of(0));
    stranger.say(std::span(hello).first(bytes));
    stranger.wait_until_closed();
  }
  Stranger stranger(address_of(0));
  tcp::Challenge::Message challenge;
  stranger.say(hello);
  ASSERT_TRUE(stranger.hear(challenge));
  const auto proof = tcp::prove(world.token, tcp::Role::dialer, hello, challenge);
  stranger.say(std::span(proof).first(31));
  EXPECT_TRUE(stranger.is_closed_without_a_word());
  EXPECT_THAT(logged(), HasSubstr("did not authenticate in time"));
  expect_untouched();
}

TEST_F(TcpEdges, StrangersWhoSayNothingKeepNobodyOut) {
  options.handshake = std::chrono::hours(1);  // their number limits them, not time
  begin();
  std::vector<Stranger> idle;
  for (int i = 0; i < 200; ++i) idle.emplace_back(address_of(0));
  for (Stranger& stranger : std::span(idle).first(200 - 2 * 3 - 16)) stranger.wait_until_closed();
  auto peer = shake_hands(0);
  ASSERT_TRUE(peer);
  EXPECT_TRUE(recorders[0]->wait_for(Kind::connected, 2));
  expect_untouched();
}

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
  for (const auto& e : recorders[0]->events()) {
    if (e.kind == Kind::disconnected) {
      EXPECT_THAT(e.reason, HasSubstr("with a damaged header"));
    }
  }
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
  for (const auto& e : recorders[0]->events()) {
    if (e.kind == Kind::received && e.frame.type == FrameType::data) {
      EXPECT_EQ(e.intact, e.frame.round % 2 == 0) << e.frame.round;
    }
  }
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
  auto peer = shake_hands(0);
  ASSERT_TRUE(peer);
  for (int i = 0; i < 2; ++i) peer->say(Frame{.type = FrameType::ack, .round = 1}.encode());
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

TEST_F(TcpEdges, ANewConnectionOfAPeerReplacesItsOld) {
  begin();
  auto first = shake_hands(0);
  ASSERT_TRUE(first);
  ASSERT_TRUE(recorders[0]->wait_for(Kind::connected, 2));
  auto second = shake_hands(0);
  ASSERT_TRUE(second);
  first->wait_until_closed();
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

TEST_F(TcpEdges, AStrangerCannotReplaceAPeer) {
  begin();
  auto peer = introduced();
  tcp::Identity liar = rank_2();
  liar.token = "a guess";
  EXPECT_FALSE(shake_hands(0, liar, tcp::Hello::of(liar, 0)));
  peer.say(Frame{.type = FrameType::ack, .round = 1}.encode());
  EXPECT_TRUE(recorders[0]->wait_for_frame(2, FrameType::ack, 1));
  EXPECT_EQ(recorders[0]->times(Kind::disconnected, 2), 0);
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
    std::string get(const std::string&, milliseconds, const Interrupted&) override {
      std::unique_lock lock(mutex);
      asked = true;
      changed.notify_all();
      changed.wait(lock, [&] { return free; });
      returned = true;
      changed.notify_all();
      return "127.0.0.1:1";
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
  // The thread that was left behind ends without the objects that are gone.
  store->changed.notify_all();
  EXPECT_TRUE(store->wait(store->returned));
}

TEST_F(TcpEdges, APeerThatListensButDoesNotComeBackIsLostAfterSilence) {
  world.timeouts.silent = milliseconds(300);
  begin();
  // Worker 2's listener exists, but does not accept, like a stopped process.
  const int listener = listen_as(2);
  {
    auto peer = introduced();
  }
  ASSERT_TRUE(recorders[0]->wait_for(Kind::lost, 2));
  for (const auto& e : recorders[0]->events()) {
    if (e.kind == Kind::lost) {
      EXPECT_THAT(e.reason, HasSubstr("no connection within 0.3 s"));
    }
  }
  auto peer = shake_hands(0);
  ASSERT_TRUE(peer);
  EXPECT_TRUE(recorders[0]->wait_for(Kind::connected, 2, 2));
  EXPECT_EQ(recorders[0]->times(Kind::lost, 2), 1);
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
    EXPECT_TRUE(recorders[i]->wait_for(Kind::lost, victim));
    EXPECT_EQ(recorders[i]->times(Kind::disconnected, victim), 1);
    EXPECT_EQ(recorders[i]->times(Kind::disconnected, others[1 - i]), 0);
    for (const auto& e : recorders[i]->events()) {
      if (e.kind == Kind::lost) {
        EXPECT_THAT(e.reason, HasSubstr("its process has ended"));
      }
    }
    transports[i]->send(others[1 - i], {.type = FrameType::ack});
    EXPECT_TRUE(recorders[1 - i]->wait_for_frame(others[i], FrameType::ack));
  }
}

class LostStore final : public Store {
 public:
  void set(const std::string&, const std::string&) override { throw StoreLost("gone"); }
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
    return events.size() == 1 && events[0].kind == Kind::lost && events[0].peer == 1 &&
           events[0].reason == "worker 1: it was killed by signal 9";
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
        [](int, const std::string&) { ADD_FAILURE(); });
    book.start();
    ASSERT_TRUE(eventually([&] { return store->asked > 0; }));
    for (int i = 0; i < 50; ++i) {  // as links do whose peers are lost
      std::this_thread::sleep_for(milliseconds(10));
      book.refresh(1 + i % 7);
    }
  }
  EXPECT_EQ(store->asked, 1);
  EXPECT_THAT(said, ::testing::ElementsAre("gone: workers that restart at another address are not found"));
}

INSTANTIATE_TEST_SUITE_P(AnyRank, KilledProcess, ::testing::Values(0, 1, 2));

}  // namespace
}  // namespace starling
