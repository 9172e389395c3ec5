// Edges over TCP: one connection per pair of workers, each proven by the run's token before
// anything else is read.
//
//   tcp.cpp         the Transport: one thread, one Link per peer, start and stop
//   listener.*      accepts strangers, a bounded number at a time
//   handshake.*     the two sides of the authentication;   proof.*  its messages and proofs
//   stream.*        a socket, plain or with TLS;               tls.*    the TLS
//   link.*          the link to one peer: dials or is dialled, redials, detects that the peer is
//                   gone
//   connection.*    frames in and out of one socket;            seal.*  what protects them
//   address_book.*  the addresses of the others, from the store
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

// TLS 1.3 on all connections (tcp/tls.h): by certificates in PEM files, or by the token.
struct TlsOptions {
  std::string certificate;  // with its chain; empty: the token is the pre-shared key
  std::string key;          // its private key
  std::string authority;    // which has signed the certificates of all workers
};

struct TcpOptions {
  // The time for a stranger to authenticate, and for a dialled peer to answer.
  std::chrono::milliseconds handshake{5'000};
  // Seals frames (seal.h) within a host too, where only root could get in between.
  bool seal_within_host = false;
  // Set it alike on all workers. TLS protects frames in place of seals.
  std::optional<TlsOptions> tls{};
};

// Listens on a free port of world.address and publishes it in world.store, under tcp_address_key().
// Workers connect only with the same world.token and the same `channel`. Throws UsageError if the
// token has less than kLeastToken bytes (world/token.h) or a file of TLS is no good, Error if it
// cannot listen there.
std::unique_ptr<Transport> make_tcp_transport(const World& world, const std::string& channel);
std::unique_ptr<Transport> make_tcp_transport_with(const TcpOptions& options, const World& world,
                                                   const std::string& channel);

// The value under this key is "host:port", numeric, an IPv6 host in brackets.
std::string tcp_address_key(const std::string& channel, int rank);

}  // namespace starling
