#include "starling/transport/tcp/proof.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "starling/core/error.h"
#include "starling/core/little_endian.h"

namespace starling::tcp {
namespace {

constexpr std::string_view kMagic = "STARLING";

// Hello: magic 8, version 4, size 4, from 4, to 4, channel 32, nonce 32. Challenge: magic 8, nonce
// 32, port 4.
constexpr std::size_t kVersionAt = 8, kSizeAt = 12, kFromAt = 16, kToAt = 20, kChannelAt = 24, kNonceAt = 56;
constexpr std::size_t kChallengeNonceAt = 8, kPortAt = 40;

void put_magic(std::span<std::byte> to) { std::memcpy(to.data(), kMagic.data(), kMagic.size()); }
bool has_magic(std::span<const std::byte> from) {
  return std::memcmp(from.data(), kMagic.data(), kMagic.size()) == 0;
}

unsigned char* raw(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

Nonce fresh_nonce() {
  Nonce nonce;
  if (RAND_bytes(raw(nonce.data()), static_cast<int>(nonce.size())) != 1)
    throw Error("tcp transport: OpenSSL has no random numbers");
  return nonce;
}

Digest digest_of(const std::string& text) {
  Digest digest;
  if (EVP_Digest(text.data(), text.size(), raw(digest.data()), nullptr, EVP_sha256(), nullptr) != 1)
    throw Error("tcp transport: OpenSSL has no SHA-256");
  return digest;
}

}  // namespace

Hello Hello::of(const Identity& self, int peer) {
  return {.size = static_cast<std::uint32_t>(self.size),
          .from = static_cast<std::uint32_t>(self.rank),
          .to = static_cast<std::uint32_t>(peer),
          .channel = digest_of(self.channel),
          .nonce = fresh_nonce()};
}

Hello::Message Hello::encode() const {
  Message message{};
  put_magic(message);
  put(message, kVersionAt, version);
  put(message, kSizeAt, size);
  put(message, kFromAt, from);
  put(message, kToAt, to);
  std::copy(channel.begin(), channel.end(), message.begin() + kChannelAt);
  std::copy(nonce.begin(), nonce.end(), message.begin() + kNonceAt);
  return message;
}

Challenge Challenge::fresh(std::uint32_t port) { return {.nonce = fresh_nonce(), .port = port}; }

Challenge::Message Challenge::encode() const {
  Message message{};
  put_magic(message);
  std::copy(nonce.begin(), nonce.end(), message.begin() + kChallengeNonceAt);
  put(message, kPortAt, port);
  return message;
}

std::optional<Challenge> Challenge::decode(const Message& message) {
  if (!has_magic(message)) return std::nullopt;
  Challenge challenge{.port = take<std::uint32_t>(message, kPortAt)};
  std::copy_n(message.begin() + kChallengeNonceAt, challenge.nonce.size(), challenge.nonce.begin());
  return challenge;
}

Caller examine(const Hello::Message& message, const Identity& self) {
  constexpr std::byte kTlsHandshake{0x16};
  if (message[0] == kTlsHandshake && message[1] == std::byte{3})
    return {.refusal = "it speaks TLS, this worker does not: set STARLING_TLS alike on all workers"};
  if (!has_magic(message)) return {.refusal = "it does not speak Starling's protocol"};
  const std::uint32_t version = take<std::uint32_t>(message, kVersionAt),
                      size = take<std::uint32_t>(message, kSizeAt);
  const std::uint32_t from = take<std::uint32_t>(message, kFromAt), to = take<std::uint32_t>(message, kToAt);
  if (version != kVersion) {
    return {.refusal =
                fmt::format("it speaks version {} of the protocol, this worker {}: run the same Starling on "
                            "all workers",
                            version, kVersion)};
  }
  const Digest channel = digest_of(self.channel);
  if (!std::equal(channel.begin(), channel.end(), message.begin() + kChannelAt))
    return {.refusal = fmt::format("it wants another channel than '{}'", self.channel)};
  if (size != static_cast<std::uint32_t>(self.size))
    return {.refusal = fmt::format("its world has {} workers, this one {}", size, self.size)};
  if (to != static_cast<std::uint32_t>(self.rank))
    return {.refusal = fmt::format("it wants worker {}, this is worker {}", to, self.rank)};
  if (from <= to || from >= size)
    return {.refusal = fmt::format("it calls itself worker {}, only workers {} to {} dial this one", from,
                                   to + 1, self.size - 1)};
  return {.rank = static_cast<int>(from), .refusal = {}};
}

namespace {

Digest hmac(const std::string& token, std::span<const std::byte> said) {
  Digest digest;
  if (HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
           reinterpret_cast<const unsigned char*>(said.data()), said.size(), raw(digest.data()),
           nullptr) == nullptr) {
    throw Error("tcp transport: OpenSSL has no HMAC-SHA256");
  }
  return digest;
}

// Each purpose of a digest has a name of its own, in a field of fixed size.
Digest digest_for(std::string_view purpose, const std::string& token, const Conversation& said) {
  constexpr std::size_t kPurposeBytes = 16;
  std::vector<std::byte> all(kPurposeBytes);
  std::memcpy(all.data(), purpose.data(), purpose.size());
  all.insert(all.end(), said.hello.begin(), said.hello.end());
  all.insert(all.end(), said.challenge.begin(), said.challenge.end());
  all.push_back(static_cast<std::byte>(said.sealed));
  all.insert(all.end(), said.binding.begin(), said.binding.end());
  return hmac(token, all);
}

}  // namespace

Digest prove(const std::string& token, Role role, const Conversation& said) {
  return digest_for(role == Role::dialer ? "dialer" : "acceptor", token, said);
}

Digest frame_key(const std::string& token, Role sender, const Conversation& said) {
  return digest_for(sender == Role::dialer ? "dialer frames" : "acceptor frames", token, said);
}

std::string sign(const std::string& token, const std::string& text) {
  std::string signature;
  for (const std::byte byte : hmac(token, std::as_bytes(std::span(text))))
    signature += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return signature;
}

bool same(const Digest& a, const Digest& b) { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace starling::tcp
