// Edges over TCP: one connection per pair of workers, each proven by the run's token before
// anything else is read.
//
//   tcp.cpp         the Transport: one thread, one Link per peer, start and stop
//   listener.*      accepts strangers, a bounded number at a time
//   handshake.*     the two sides of the authentication;   proof.*  its messages and proofs
//   link.*          the link to one peer: dials or is dialled, redials, detects that the peer is
//                   gone
//   connection.*    frames in and out of one socket;            seal.*  what protects them
//   address_book.*  the addresses of the others, from the store
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "starling/transport/transport.h"
#include "starling/world/world.h"

namespace starling {

struct TcpOptions {
  // The time for a stranger to authenticate, and for a dialled peer to answer.
  std::chrono::milliseconds handshake{5'000};
  // Seals frames (seal.h) within a host too, where only root could get in between.
  bool seal_within_host = false;
};

// Listens on a free port of world.address and publishes it in world.store, under tcp_address_key().
// Workers connect only with the same world.token and the same `channel`. Throws UsageError if the
// token has less than kLeastToken bytes (world/token.h), Error if it cannot listen there.
std::unique_ptr<Transport> make_tcp_transport(const World& world, const std::string& channel);
std::unique_ptr<Transport> make_tcp_transport_with(const TcpOptions& options, const World& world,
                                                   const std::string& channel);

// The value under this key is "host:port", numeric, an IPv6 host in brackets.
std::string tcp_address_key(const std::string& channel, int rank);

}  // namespace starling
