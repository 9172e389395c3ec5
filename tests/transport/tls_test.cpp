// TLS on the edges: with the token and with certificates, and its refusals.
#include "starling/transport/tcp/tls.h"

#include <gmock/gmock.h>

#include "certificates.h"
#include "starling/core/descriptor.h"
#include "starling/transport/tcp/stream.h"
#include "tcp_edges.h"
#include "tests/folder.h"
#include "tests/refusal.h"

namespace starling {

std::unique_ptr<Fabric> make_tls_fabric(int size) {
  return std::make_unique<Loopback>(size, [](const World& world, const std::string& channel) {
    return make_tcp_transport_with({.tls = TlsOptions{}}, world, channel);
  });
}

namespace {

using Kind = Recorder::Kind;
using tcp::Role;
using tcp::Tls;
using tcp::TlsSession;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Two ends of TLS on a pair of sockets.
struct Pair {
  Pair(const Tls& dialer, const Tls& acceptor) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
    const auto address = asio::ip::make_address("127.0.0.1");
    ends[0] = std::make_unique<TlsSession>(dialer, Role::dialer, sockets[0], address);
    ends[1] = std::make_unique<TlsSession>(acceptor, Role::acceptor, sockets[1], address);
  }
  ~Pair() {
    for (const int fd : sockets) close(fd);
  }
  // Whether both have completed it.
  bool shake_hands() {
    TlsSession::Step steps[2] = {TlsSession::Step::wants_read, TlsSession::Step::wants_read};
    for (int times = 0; times < 10; ++times) {
      for (const int i : {0, 1}) {
        if (steps[i] == TlsSession::Step::wants_read) steps[i] = ends[i]->shake_hands();
      }
    }
    return steps[0] == TlsSession::Step::done && steps[1] == TlsSession::Step::done;
  }
  int sockets[2];
  std::unique_ptr<TlsSession> ends[2];
};

const std::string kToken = "a token of these tests";

TEST(TlsSession, CarriesAllBytesThroughANarrowSocket) {
  const Tls tls({}, kToken);
  Pair pair(tls, tls);
  ASSERT_TRUE(pair.shake_hands());
  const Bytes sent = *random_block(1'000'003, 1);
  Bytes got(sent.size());
  std::size_t written = 0, read = 0;
  asio::error_code error;
  while (read < got.size()) {
    if (written < sent.size()) {
      const std::array<asio::const_buffer, 2> parts = {
          asio::buffer(sent.data() + written, 1),
          asio::buffer(sent.data() + written + 1, sent.size() - written - 1)};
      written += pair.ends[0]->write_some(parts, error);
      ASSERT_TRUE(!error || error == asio::error::would_block) << error.message();
    }
    read += pair.ends[1]->read_some(std::span(got).subspan(read), error);
    ASSERT_TRUE(!error || error == asio::error::would_block) << error.message();
  }
  EXPECT_EQ(got, sent);
}

TEST(TlsSession, EachHasItsOwnBindingWhichBothEndsKnow) {
  const Tls tls({}, kToken);
  Pair one(tls, tls), other(tls, tls);
  ASSERT_TRUE(one.shake_hands() && other.shake_hands());
  EXPECT_EQ(one.ends[0]->binding(), one.ends[1]->binding());
  EXPECT_NE(one.ends[0]->binding(), other.ends[0]->binding());
}

TEST(TlsSession, ForeignBytesEndIt) {
  const Tls tls({}, kToken);
  Pair pair(tls, tls);
  ASSERT_TRUE(pair.shake_hands());
  Bytes record = {std::byte{23}, std::byte{3}, std::byte{3}, std::byte{0}, std::byte{20}};
  record.resize(25);
  EXPECT_EQ(::send(pair.sockets[0], record.data(), record.size(), 0), 25);
  asio::error_code error;
  Bytes got(100);
  EXPECT_EQ(pair.ends[1]->read_some(got, error), 0U);
  EXPECT_TRUE(error && error != asio::error::would_block);
  EXPECT_THAT(pair.ends[1]->trouble(), HasSubstr("TLS with it fails: decryption failed or bad record mac"));
}

TEST(TlsSession, ADialersPeerMayHaveAnyAddress) {
  const Tls tls({}, kToken);
  for (const char* text : {"127.0.0.1", "::1", "fe80::1%1"}) {
    const auto address = asio::ip::make_address(text);
    EXPECT_EQ(refusal([&] { TlsSession(tls, Role::dialer, -1, address); }), "accepted") << text;
  }
}

// A step of it may be waiting for its turn, while another descriptor takes the number.
TEST(TlsStream, AClosedOneReadsFromNoDescriptor) {
  const Tls tls({}, kToken);
  asio::io_context io;
  tcp::Tcp::acceptor acceptor(io, {asio::ip::make_address("127.0.0.1"), 0});
  tcp::Tcp::socket dialed(io);
  dialed.connect(acceptor.local_endpoint());
  tcp::Stream stream(std::move(dialed)), peer(acceptor.accept());
  int secured = 0;
  const auto count = [&](const asio::error_code& error) { secured += !error; };
  stream.async_secure(&tls, Role::dialer, count);
  peer.async_secure(&tls, Role::acceptor, count);
  io.run();
  ASSERT_EQ(secured, 2);

  asio::error_code end;
  Bytes room(1);
  stream.async_read(room, [&](const asio::error_code& error, std::size_t) { end = error; });
  int others[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, others), 0);
  const Descriptor one(others[0]), another(others[1]);
  const int number = stream.socket().native_handle();
  stream.close();
  const Descriptor taken(dup2(one.get(), number));
  ASSERT_EQ(::send(another.get(), "x", 1, 0), 1);
  io.restart();
  io.run();
  EXPECT_EQ(end, asio::error::operation_aborted);
  char byte = 0;
  EXPECT_EQ(::recv(taken.get(), &byte, 1, 0), 1);
}

TEST(TlsSession, AnotherTokenIsRefused) {
  const Tls tls({}, kToken), stranger({}, kToken + " ");
  for (const bool dials : {false, true}) {
    Pair pair(dials ? stranger : tls, dials ? tls : stranger);
    EXPECT_FALSE(pair.shake_hands());
    EXPECT_THAT(pair.ends[1]->trouble(), HasSubstr("TLS with it fails"));
  }
}

class Certified : public TcpEdges {
 protected:
  // Workers 0 and 1 of two. True if they are connected and a block arrives.
  bool meet(const std::optional<TlsOptions>& zero, const std::optional<TlsOptions>& one) {
    world.size = 2;
    world.timeouts.meet = std::chrono::milliseconds(1000);
    options.tls = zero;
    add(make(0));
    options.tls = one;
    add(make(1));
    for (const int rank : {0, 1}) transports[rank]->open(1 - rank);
    const auto decided = [](const Recorder::Events& events) { return !events.empty(); };
    for (const int rank : {0, 1}) EXPECT_TRUE(recorders[rank]->wait(decided));
    for (const int rank : {0, 1}) {
      if (recorders[rank]->times(Kind::connected, 1 - rank) == 0) return false;
    }
    const auto block = random_block(600'000, 1);
    transports[1]->send(0, {.type = FrameType::data}, payload_of(block));
    return recorders[0]->wait_for_frame(1, FrameType::data) &&
           recorders[0]->block(1, FrameType::data) == *block;
  }
  // Why worker 1, which dials, has lost worker 0.
  std::string reason() { return recorders[1]->reasons(Kind::lost).at(0); }

  Folder folder;
  Authority ours{folder.path, "ours"}, another{folder.path, "another"};
};

TEST_F(Certified, WorkersOfOneAuthorityMeet) {
  EXPECT_TRUE(meet(ours.worker("zero", "127.0.0.1"), ours.worker("one", "127.0.0.1")));
}

TEST_F(Certified, ADialersAddressIsNotDemanded) {
  EXPECT_TRUE(meet(ours.worker("zero", "127.0.0.1"), ours.worker("one", "192.0.2.1")));
}

TEST_F(Certified, ACertificateOfAnotherHostIsRefused) {
  EXPECT_FALSE(meet(ours.worker("zero", "192.0.2.1"), ours.worker("one", "127.0.0.1")));
  EXPECT_THAT(reason(), HasSubstr("its certificate is refused: IP address mismatch"));
}

TEST_F(Certified, AnotherAuthorityOfTheAcceptorIsRefused) {
  EXPECT_FALSE(meet(another.worker("zero", "127.0.0.1"), ours.worker("one", "127.0.0.1")));
  EXPECT_THAT(reason(), AllOf(HasSubstr("its certificate is refused: "), HasSubstr("STARLING_TLS_CA")));
}

// The acceptor trusts the dialer's authority no more than that of a stranger.
TEST_F(Certified, AnotherAuthorityOfTheDialerIsRefused) {
  TlsOptions dialer = another.worker("one", "127.0.0.1");
  dialer.authority = ours.worker("zero", "127.0.0.1").authority;
  EXPECT_FALSE(meet(ours.worker("zero", "127.0.0.1"), dialer));
  EXPECT_THAT(logged(), HasSubstr("its certificate is refused: "));
}

TEST_F(Certified, APlainDialerIsRefused) {
  EXPECT_FALSE(meet(TlsOptions{}, std::nullopt));
  EXPECT_THAT(logged(), HasSubstr("is STARLING_TLS the same on all workers?"));
}

TEST_F(Certified, ATlsDialerToAPlainPortIsRefused) {
  EXPECT_FALSE(meet(std::nullopt, TlsOptions{}));
  EXPECT_THAT(logged(),
              HasSubstr("it speaks TLS, this worker does not: set STARLING_TLS alike on all workers"));
  EXPECT_THAT(reason(), HasSubstr("is STARLING_TLS the same on all workers?"));
}

TEST_F(Certified, AKeyAndACertificateDoNotMeet) {
  EXPECT_FALSE(meet(TlsOptions{}, ours.worker("one", "127.0.0.1")));
  EXPECT_THAT(logged(), HasSubstr("is STARLING_TLS the same on all workers?"));
}

TEST_F(Certified, ACertificateAndAKeyDoNotMeet) {
  EXPECT_FALSE(meet(ours.worker("zero", "127.0.0.1"), TlsOptions{}));
  EXPECT_THAT(logged(), HasSubstr("is STARLING_TLS the same on all workers?"));
}

TEST_F(Certified, FilesThatAreNoneAreNamed) {
  const TlsOptions good = ours.worker("zero", "127.0.0.1");
  const std::pair<std::string TlsOptions::*, const char*> files[] = {
      {&TlsOptions::certificate, "CERT"}, {&TlsOptions::key, "KEY"}, {&TlsOptions::authority, "CA"}};
  spill(folder / "junk", "junk");
  for (const auto& [file, variable] : files) {
    for (const std::string& wrong : {folder / "nothing", folder / "junk"}) {
      TlsOptions bad = good;
      bad.*file = wrong;
      EXPECT_THAT(refusal<UsageError>([&] { const Tls tls(bad, kToken); }),
                  HasSubstr(fmt::format("STARLING_TLS_{}='{}' is not ", variable, wrong)));
    }
  }
  TlsOptions bad = good;
  bad.key = ours.worker("other", "127.0.0.1").key;
  EXPECT_THAT(refusal<UsageError>([&] { const Tls tls(bad, kToken); }), HasSubstr("key values mismatch"));
}

}  // namespace
}  // namespace starling
