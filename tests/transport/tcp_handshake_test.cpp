// TCP's handshake: addresses, tokens, and strangers of all kinds.
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "tcp_edges.h"
#include "tests/refusal.h"

namespace starling {
namespace {

using Kind = Recorder::Kind;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(TcpEdges, ListensOnTheGivenAddressOnly) {
  begin();
  EXPECT_THAT(address_of(0), ::testing::StartsWith("127.0.0.1:"));
  for (const char* address : {"0.0.0.0", "::", ""}) {
    world.address = address;
    EXPECT_THROW(make(2), UsageError) << address;
  }
  for (const char* address : {"no such host.invalid", "192.0.2.1"}) {  // no host's address (RFC 5737)
    world.address = address;
    EXPECT_THROW(make(2), Error) << address;
  }
}

TEST_F(TcpEdges, WithoutALongTokenNobodyListens) {
  for (const char* token : {"", "x", "fifteen bytes.."}) {
    world.token = token;
    for (const char* address : {"127.0.0.1", "192.0.2.1"}) {
      world.address = address;
      EXPECT_THAT(refusal<UsageError>([&] { make(0); }),
                  AllOf(HasSubstr("STARLING_TOKEN_FILE"), HasSubstr(address),
                        HasSubstr(fmt::format("{} bytes, and needs at least 16", world.token.size()))));
    }
  }
  EXPECT_TRUE(refusal([&] { published(0); }).starts_with("store: nobody has set the key"));
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
  EXPECT_THAT(logged(), HasSubstr(fmt::format("it speaks version {} of the protocol, this worker {}: run the "
                                              "same Starling on all workers",
                                              tcp::kVersion + 1, tcp::kVersion)));
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
  for (const std::string& token :
       {std::string(), std::string("the wrong token"), world.token.substr(1), world.token + " "}) {
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
  tcp::Conversation said{.hello = tcp::Hello::of(rank_2(), 0).encode()};
  tcp::Digest welcome;
  Stranger honest(address_of(0));
  honest.say(said.hello);
  ASSERT_TRUE(honest.hear(said.challenge));
  const auto proof = tcp::prove(world.token, tcp::Role::dialer, said);
  honest.say(proof);
  ASSERT_TRUE(honest.hear(welcome));
  ASSERT_TRUE(recorders[0]->wait_for(Kind::connected, 2));
  for (const auto& stolen : {proof, welcome}) {
    tcp::Challenge::Message other;
    Stranger thief(address_of(0));
    thief.say(said.hello);
    ASSERT_TRUE(thief.hear(other));
    EXPECT_NE(other, said.challenge);
    thief.say(stolen);
    EXPECT_TRUE(thief.is_closed_without_a_word());
  }
  expect_untouched();
  EXPECT_EQ(recorders[0]->times(Kind::connected, 2), 1);
}

// Only a dialer that has reached the acceptor's own port within a host may go without seals.
TEST_F(TcpEdges, FramesAreSealedUnlessBothEndsAllowTheOther) {
  options.seal_within_host = true;
  begin();
  EXPECT_FALSE(shake_hands(0));
  EXPECT_THAT(logged(), HasSubstr("does not have this run's token"));
  expect_untouched();
}

TEST_F(TcpEdges, TheAcceptorNamesItsPort) {
  begin();
  tcp::Challenge::Message challenge;
  Stranger stranger(address_of(0));
  stranger.say(tcp::Hello::of(rank_2(), 0).encode());
  ASSERT_TRUE(stranger.hear(challenge));
  EXPECT_THAT(address_of(0),
              ::testing::EndsWith(fmt::format(":{}", tcp::Challenge::decode(challenge)->port)));
}

TEST_F(TcpEdges, TwoRunsWithDifferentTokensStayApart) {
  world.size = 2;
  world.timeouts.silent = milliseconds(1000);
  world.timeouts.meet = std::chrono::hours(1);  // nobody waits so long for another token
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
  for (Recorder* const recorder : {&first, &second})
    EXPECT_THAT(recorder->reasons(Kind::lost),
                ::testing::Each(HasSubstr("is not signed with this worker's token: give all workers the same "
                                          "one, by STARLING_TOKEN_FILE or STARLING_TOKEN")));
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
      const auto challenge = tcp::Challenge::fresh(0).encode();
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
  tcp::Conversation said{.hello = hello};
  stranger.say(hello);
  ASSERT_TRUE(stranger.hear(said.challenge));
  const auto proof = tcp::prove(world.token, tcp::Role::dialer, said);
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
  introduced();
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

}  // namespace
}  // namespace starling
