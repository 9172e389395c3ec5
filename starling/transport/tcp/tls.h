// TLS 1.3 on one socket, by OpenSSL: the keys of a worker, and a session with one peer.
//
// With a pre-shared key, which both derive from the token, nothing else is needed. With
// certificates, each side demands one of the other, signed by the authority. The dialer also
// demands that the acceptor's names the address that it has dialled. The proof of the token
// (proof.h) runs inside, and is bound to this very session by TlsSession::binding().
//
// OpenSSL reads from the socket itself. Its output is gathered here, so that many records cost one
// system call.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "starling/transport/tcp/asio.h"
#include "starling/transport/tcp/proof.h"
#include "starling/transport/tcp/tcp.h"

struct bio_st;
struct ssl_ctx_st;
struct ssl_st;

namespace starling::tcp {

// The keys and settings of all connections of one worker.
class Tls {
 public:
  // Throws UsageError if a file cannot be read or holds something else.
  Tls(const TlsOptions& options, const std::string& token);
  Tls(const Tls&) = delete;

 private:
  friend class TlsSession;
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  using Context = std::unique_ptr<ssl_ctx_st, Free>;
  Context make(Role role, const TlsOptions& options);

  const std::string key_;  // the pre-shared one, which OpenSSL's callbacks read; empty: certificates
  Context dialer_, acceptor_;
};

class TlsSession {
 public:
  // `socket` does not block, and is open as long as this is used. `address`: the peer's, which the
  // dialer demands in its certificate.
  TlsSession(const Tls& tls, Role role, int socket, const asio::ip::address& address);

  enum class Step { done, wants_read, wants_write, failed };
  // Goes on with the handshake.
  Step shake_hands();
  // 32 bytes that only the two ends of this session know.
  Digest binding() const;

  // As those of a socket that does not block. A write that would block must be repeated with the
  // same bytes.
  std::size_t read_some(std::span<std::byte> to, asio::error_code& error);
  std::size_t write_some(std::span<const asio::const_buffer> from, asio::error_code& error);

  // Whether the peer has sent anything.
  bool has_heard() const { return heard_; }
  // Why the last call failed, if TLS is the reason; else empty.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Wire;
  struct Free {
    void operator()(ssl_st* session) const;
  };
  void flush(asio::error_code& error);
  std::string explain() const;

  std::unique_ptr<ssl_st, Free> ssl_;
  int socket_;
  std::vector<std::byte> out_;  // encrypted
  std::size_t sent_ = 0;        // of it
  std::size_t accepted_ = 0;    // bytes of the last write that out_ holds
  bool heard_ = false;
  asio::error_code end_;  // of the socket
  std::string trouble_;
};

}  // namespace starling::tcp
