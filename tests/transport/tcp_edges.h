// Workers 0 and 1 of three, with edges over TCP. The test plays worker 2, correctly or not.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "fabric.h"
#include "recorder.h"
#include "starling/core/error.h"
#include "starling/transport/tcp/address_book.h"
#include "starling/transport/tcp/proof.h"
#include "starling/transport/tcp/tcp.h"
#include "tests/sockets.h"

namespace starling {

// A raw socket with which a test plays any role.
class Stranger {
 public:
  explicit Stranger(const std::string& address)
      : fd_(dial(std::stoi(address.substr(address.rfind(':') + 1)))) {
    EXPECT_GE(fd_, 0) << address;
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

 private:
  int fd_;
};

// A base of its own: the threads of the ends write to the log.
struct TcpWorld : LoggedWorld {
  TcpWorld() : LoggedWorld(3) {}
  TcpOptions options;
};

class TcpEdges : public ::testing::Test, protected TcpWorld, protected Ends {
 protected:
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
    for (int rank : {0, 1}) ASSERT_TRUE(recorders[rank]->wait_for(Recorder::Kind::connected, 1 - rank));
  }
  std::string published(int rank) {
    return world.store->get(tcp_address_key("test", rank), std::chrono::milliseconds(1000));
  }
  std::string address_of(int rank) {
    const std::string said = published(rank);
    return said.substr(0, said.find(' '));
  }
  tcp::Identity rank_2() { return {2, 3, "test", world.token}; }

  // As worker 2, correctly, and without seals. With `identity` and `hello` changed, incorrectly.
  std::optional<Stranger> shake_hands(int peer, const tcp::Identity& identity, const tcp::Hello& hello) {
    Stranger stranger(address_of(peer));
    tcp::Conversation said{.hello = hello.encode(), .sealed = false};
    tcp::Digest proof;
    if (!stranger.say(said.hello) || !stranger.hear(said.challenge)) return std::nullopt;
    EXPECT_TRUE(tcp::Challenge::decode(said.challenge));
    if (!stranger.say(tcp::prove(identity.token, tcp::Role::dialer, said))) return std::nullopt;
    if (!stranger.hear(proof)) return std::nullopt;
    EXPECT_EQ(proof, tcp::prove(world.token, tcp::Role::acceptor, said));
    return stranger;
  }
  std::optional<Stranger> shake_hands(int peer) {
    return shake_hands(peer, rank_2(), tcp::Hello::of(rank_2(), peer));
  }

  // The same, and worker 0 has accepted it, for the n-th time.
  Stranger introduced(int times = 1) {
    auto peer = shake_hands(0);
    if (!peer || !recorders[0]->wait_for(Recorder::Kind::connected, 2, times))
      throw Error("worker 0 did not accept");
    return std::move(*peer);
  }
  // A socket that listens at the address of this worker.
  int listen_as(int rank) {
    const int fd = listener();
    world.store->set(tcp_address_key("test", rank),
                     tcp::signed_address({rank, world.size, "test", world.token}, rank,
                                         fmt::format("127.0.0.1:{}", port_of(fd))));
    return fd;
  }

  // The edge between 0 and 1 works without interruption, and worker 2 was never considered
  // connected.
  void expect_untouched() {
    static std::uint64_t round = 0;
    const std::uint64_t now = ++round;
    for (int rank : {0, 1}) {
      transports[rank]->send(1 - rank, {.type = FrameType::ack, .round = now});
      EXPECT_TRUE(recorders[1 - rank]->wait_for_frame(rank, FrameType::ack, now));
      EXPECT_EQ(recorders[rank]->times(Recorder::Kind::disconnected, 1 - rank), 0);
    }
  }
  std::string logged() { return log.text(); }
};

}  // namespace starling
