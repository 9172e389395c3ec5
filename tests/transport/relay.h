// A relay between two workers. It forwards their handshake, and then changes the stream of frames
// once, as well as can be done without the token.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "starling/core/little_endian.h"
#include "starling/transport/tcp/address_book.h"
#include "starling/transport/tcp/proof.h"
#include "starling/transport/tcp/seal.h"
#include "starling/transport/tcp/tcp.h"
#include "tests/sockets.h"

namespace starling {

enum class Attack { none, payload, header, tag, repeat, drop, swap };

class Relay {
 public:
  enum class Towards { acceptor, dialer };

  // Takes the place of worker 0 in the store, even with its signature: as if it had got hold of the
  // worker's port.
  Relay(const World& world, const std::string& channel) {
    const std::string key = tcp_address_key(channel, 0);
    const std::string real = world.store->get(key, std::chrono::milliseconds(1000));
    port_ = std::stoi(real.substr(real.find(':') + 1));
    world.store->set(key, tcp::signed_address({0, world.size, channel, world.token}, 0,
                                              fmt::format("127.0.0.1:{}", port_of(listener_))));
    accepting_ = std::thread([this] { accept_all(); });
  }
  ~Relay() {
    ::shutdown(listener_, SHUT_RDWR);
    accepting_.join();
    for (const int fd : sockets_) ::shutdown(fd, SHUT_RDWR);
    for (auto& pump : pumps_) pump.join();
    for (const int fd : sockets_) close(fd);
    close(listener_);
  }

  // Attacks the next frame of data in this direction.
  void attack(Attack attack, Towards towards) { attacks_[static_cast<int>(towards)] = attack; }
  bool has_attacked(Towards towards) const { return attacks_[static_cast<int>(towards)] == Attack::none; }

 private:
  static constexpr std::size_t kHead = Frame::kBytes + tcp::Seal::kTag;

  void accept_all() {
    for (int dialer; (dialer = ::accept(listener_, nullptr, nullptr)) >= 0;) {
      const int acceptor = dial(port_);
      if (acceptor < 0) {
        close(dialer);
        continue;
      }
      sockets_.insert(sockets_.end(), {dialer, acceptor});
      const auto pump = [this](int from, int to, std::vector<std::size_t> handshake, Towards towards) {
        forward(from, to, handshake, attacks_[static_cast<int>(towards)]);
        ::shutdown(from, SHUT_RDWR);
        ::shutdown(to, SHUT_RDWR);
      };
      using Sizes = std::vector<std::size_t>;
      pumps_.emplace_back(pump, dialer, acceptor, Sizes{tcp::Hello::kBytes, sizeof(tcp::Digest)},
                          Towards::acceptor);
      pumps_.emplace_back(pump, acceptor, dialer, Sizes{tcp::Challenge::kBytes, sizeof(tcp::Digest)},
                          Towards::dialer);
    }
  }

  static bool hear(int from, std::vector<std::byte>& bytes, std::size_t more) {
    bytes.resize(bytes.size() + more);
    return ::recv(from, bytes.data() + bytes.size() - more, more, MSG_WAITALL) == static_cast<ssize_t>(more);
  }
  static bool say(int to, const std::vector<std::byte>& bytes) {
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = ::send(to, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<std::size_t>(n);
    }
    return true;
  }

  void forward(int from, int to, const std::vector<std::size_t>& handshake, std::atomic<Attack>& planned) {
    for (const std::size_t bytes : handshake) {
      std::vector<std::byte> message;
      if (!hear(from, message, bytes) || !say(to, message)) return;
    }
    std::vector<std::byte> held;  // comes after the next frame
    for (;;) {
      std::vector<std::byte> frame;
      if (!hear(from, frame, kHead)) return;
      const auto length = take<std::uint32_t>(frame, 28);
      if (length > 0 && !hear(from, frame, length + tcp::Seal::kTag)) return;
      const bool is_data = frame[4] == static_cast<std::byte>(FrameType::data);
      const Attack attack = is_data ? planned.exchange(Attack::none) : Attack::none;
      if (attack == Attack::swap) {
        held = std::move(frame);
        continue;
      }
      if (attack == Attack::drop) continue;
      change(frame, attack);
      if (!say(to, frame)) return;
      if (attack == Attack::repeat && !say(to, frame)) return;
      if (!held.empty() && !say(to, std::exchange(held, {}))) return;
    }
  }

  // A bit of it, with the checksums that fit then.
  static void change(std::vector<std::byte>& frame, Attack attack) {
    const std::span all(frame);
    if (attack == Attack::tag) frame.back() ^= std::byte{1};
    if (attack == Attack::payload) frame[kHead + 3] ^= std::byte{0x40};  // an exponent, if it is fp32
    if (attack != Attack::header) return;
    frame[32] ^= std::byte{1};  // its value
    put(all, 60, crc32c(all.first(60)));
  }

  int port_ = 0;
  const int listener_ = listener();
  std::atomic<Attack> attacks_[2] = {Attack::none, Attack::none};
  std::vector<int> sockets_;  // both until its thread has ended
  std::vector<std::thread> pumps_;
  std::thread accepting_;
};

constexpr Attack kAttacks[] = {Attack::payload, Attack::header, Attack::tag,
                               Attack::repeat,  Attack::drop,   Attack::swap};

}  // namespace starling
