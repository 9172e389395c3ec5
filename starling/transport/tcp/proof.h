// Mutual authentication: two workers prove that they belong to the same run, before any frame:
//
//   dialer   -> acceptor   Hello      my rank, the rank I want, a nonce
//   acceptor -> dialer     Challenge  a nonce; my port, if I see both ends on one host, else 0
//   dialer   -> acceptor   Proof      HMAC-SHA256(token, "dialer", Hello, Challenge, sealed)
//   acceptor -> dialer     Proof      HMAC-SHA256(token, "acceptor", Hello, Challenge, sealed)
//
// All messages have a fixed size. The nonces are fresh in both directions, which prevents replay.
// The role is part of the signed data, which prevents reflection. The whole conversation is signed,
// which prevents changes on the way. The dialer proves first: it knows from the store whom it
// dials, while the acceptor knows nothing.
//
// `sealed` says whether the frames that follow are sealed (seal.h), with keys that both derive from
// the token and the conversation. The dialer decides; the acceptor learns it from the proof. Frames
// are not sealed if one kernel joins both ends and nobody is in between: both see the same address
// at both ends, and the dialer has dialled the acceptor's very port. A relay has another port.
//
// The Hello never changes its size or the place of its version, so that a worker of another version
// is told so. There are no sockets here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace starling::tcp {

inline constexpr std::uint32_t kVersion = 2;

using Nonce = std::array<std::byte, 32>;
using Digest = std::array<std::byte, 32>;

// One end of all edges of one worker in one channel.
struct Identity {
  int rank = 0;
  int size = 1;
  std::string channel;
  std::string token;
};

struct Hello {
  static constexpr std::size_t kBytes = 88;
  using Message = std::array<std::byte, kBytes>;

  std::uint32_t version = kVersion;
  std::uint32_t size = 0;  // of the world
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  Digest channel{};  // SHA-256 of its name
  Nonce nonce{};

  static Hello of(const Identity& self, int peer);  // with a fresh nonce
  Message encode() const;
};

struct Challenge {
  static constexpr std::size_t kBytes = 44;
  using Message = std::array<std::byte, kBytes>;

  Nonce nonce{};
  std::uint32_t port = 0;  // the acceptor's, if it sees both ends on one host

  static Challenge fresh(std::uint32_t port = 0);
  Message encode() const;
  // Nothing if this is no Challenge, by its magic.
  static std::optional<Challenge> decode(const Message& message);
};

// An acceptor's result for a Hello: the rank that dials, or why it is refused.
struct Caller {
  int rank = -1;
  std::string refusal;  // empty: not refused
};
Caller examine(const Hello::Message& message, const Identity& self);

struct Conversation {
  Hello::Message hello{};
  Challenge::Message challenge{};
  bool sealed = true;
  Digest binding{};  // of the TLS session (tls.h), if there is one
};

enum class Role { dialer, acceptor };
Digest prove(const std::string& token, Role role, const Conversation& said);
// The key of the frames that this side sends on this connection.
Digest frame_key(const std::string& token, Role sender, const Conversation& said);
// HMAC-SHA256(token, text), in hexadecimal: signs what a worker writes to the store.
std::string sign(const std::string& token, const std::string& text);
// Compares in constant time.
bool same(const Digest& a, const Digest& b);

}  // namespace starling::tcp
